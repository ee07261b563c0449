//! A tiny network trained for six steps with BYOL, SimSiam, Barlow Twins and VICReg against PyTorch: our losses, predictor and
//! momentum, SGD by hand.

use crate::files::{Golden, hashed, json};
use crate::joint::{evaluate, loss_of, sets_of};
use crate::resnet::gradients;
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use ndarray::Axis;
use serde_json::Value;
use sogclr::comm::Group;
use sogclr::encoder::{BufferUpdates, Compute, Linear, Pass, apply_buffers};
use sogclr::loss::SetName;
use sogclr::method::{Predictor, cosine_momentum};
use sogclr::optim::pull_back;
use sogclr::params::{HostTensor, NamedTensors, export, import, to_matrix};

/// x `[B, 6]` → z `[B, 4]` → p `[B, 4]`
#[derive(Module, Debug)]
struct Tiny {
    encoder: Linear,
    head: Linear,
    predictor: Option<Predictor>,
}

impl Tiny {
    /// `reference/joint_steps.py`'s `fill`.
    fn new(info: &Value, has_predictor: bool, compute: &Compute) -> Self {
        let number = |key: &str| info[key].as_u64().unwrap() as usize;
        let (features, dim) = (number("features"), number("dim"));
        let net = Self {
            encoder: Linear::new(number("input"), features, compute),
            head: Linear::new(features, dim, compute).with_bias(),
            predictor: has_predictor.then(|| Predictor::new(dim, number("hidden"), compute)),
        };
        let mut tensors = export(&net);
        for (name, tensor) in tensors.iter_mut().filter(|(name, _)| !name.contains("running_")) {
            let new = |r: f32| if name.ends_with("bn.weight") { 1.0 + 0.2 * r } else { r };
            tensor.values = hashed(name, tensor.values.len()).into_iter().map(new).collect();
        }
        import(net, &tensors).unwrap()
    }

    fn embed(&self, x: Tensor<2>) -> Tensor<2> {
        self.head.forward(self.encoder.forward(x))
    }
}

fn assert_close(what: &str, ours: &HostTensor, want: &[f64]) {
    assert_eq!(ours.values.len(), want.len(), "{what}");
    let largest = want.iter().fold(0.0_f64, |max, v| max.max(v.abs()));
    for (ours, want) in ours.values.iter().zip(want) {
        let error = (f64::from(*ours) - want).abs();
        assert!(error <= 5e-6 * largest, "{what}: {ours} vs {want}, error {error} of {largest}");
    }
}

#[test]
fn six_steps_without_negatives_follow_pytorch() {
    let info = json("joint_steps.json");
    for kind in info["configs"].as_object().unwrap().keys() {
        for compute in [Compute::cpu(), Compute::plain(Device::flex())] {
            follow(kind, &info, &compute.autodiff());
        }
    }
}

fn follow(kind: &str, info: &Value, compute: &Compute) {
    let golden = Golden::open("joint_steps.safetensors");
    let stored = |name: &str| golden.get(&format!("{kind}.{name}")).into_raw_vec_and_offset().0;
    let lr = info["lr"].as_f64().unwrap() as f32;
    let momenta: Vec<f64> = serde_json::from_value(info["momentum"].clone()).unwrap();
    let loss = loss_of(kind, &info["configs"][kind]);
    let mut net = Tiny::new(info, ["byol", "simsiam"].contains(&kind), compute);
    let mut target = Tiny::new(info, false, &compute.inner());
    for (t, &want) in stored("loss").iter().enumerate() {
        let view = |name: &str, device: &Device| {
            let all = golden.get(name);
            let x = all.index_axis(Axis(0), t);
            let data = TensorData::new(x.iter().map(|&v| v as f32).collect::<Vec<f32>>(), x.shape());
            Tensor::<2>::from_data(data, device)
        };
        let mut updates = BufferUpdates::default();
        let mut embedded = Vec::new();
        let mut raw = Vec::new();
        for (k, x) in ["x_a", "x_b"].into_iter().enumerate() {
            let z = net.embed(view(x, compute.device()));
            if let Some(predictor) = &net.predictor {
                let p = predictor.forward(z.clone(), &mut Pass::Train(&mut updates, &Group::solo()));
                embedded.push((SetName::Predictor(k), p));
            }
            embedded.push((SetName::View(k), z));
            raw.push((SetName::Key(k), to_matrix(target.embed(view(x, compute.inner().device())))));
        }
        raw.extend(embedded.iter().map(|(set, h)| (*set, to_matrix(h.clone().inner()))));
        let raw = sets_of(kind).iter().map(|(_, set)| raw.iter().find(|(s, _)| s == set).unwrap().clone()).collect();

        let out = evaluate(loss.as_ref(), raw);
        let error = (out.loss - want).abs();
        assert!(error <= 5e-6 * want.abs(), "{kind} step {t}: {} vs {want}, error {error}", out.loss);
        let terms = out.grads.into_iter().map(|(set, dh)| {
            let (_, h) = embedded.iter().find(|(s, _)| *s == set).unwrap();
            (h.clone(), dh)
        });
        let grads = gradients(&net, &pull_back(terms));

        let mut tensors = export(&apply_buffers(net.clone(), &mut updates));
        for (name, grad) in &grads {
            let values = &mut tensors.get_mut(name).unwrap().values;
            values.iter_mut().zip(grad).for_each(|(w, g)| *w -= lr * g);
        }
        let trained = tensors.keys().filter(|name| !name.contains("running_")).count();
        assert_eq!(grads.len(), trained, "{kind}: all are trained");
        net = import(net, &tensors).unwrap();

        // k ← m·k + (1 − m)·q, q after the update
        let m = cosine_momentum(momenta[0], t, momenta.len());
        assert!((m - momenta[t]).abs() < 1e-12, "m of step {t}: {m}");
        let mut followed = export(&target);
        for (name, k) in &mut followed {
            let mix = |(k, q): (&mut f32, &f32)| *k = (m * f64::from(*k) + (1.0 - m) * f64::from(*q)) as f32;
            k.values.iter_mut().zip(&tensors[name].values).for_each(mix);
        }
        target = import(target, &followed).unwrap();
    }

    let after: NamedTensors = export(&net);
    for (name, ours) in &after {
        // Running statistics move once in a step.
        let stored_as = if name.contains("running_") { format!("{name}_once") } else { name.clone() };
        assert_close(&format!("{kind} {name}"), ours, &stored(&stored_as));
    }
    if kind == "byol" {
        for (name, ours) in &export(&target) {
            assert_close(&format!("{kind} target.{name}"), ours, &stored(&format!("target.{name}")));
        }
    }
}
