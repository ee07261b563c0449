//! Every loss over ten and more steps of state against PyTorch: value, objective, all gradients, ln u.

use crate::files::{Golden, json};
use ndarray::{ArrayView2, Axis, Ix1, Ix2};
use sogclr::data::Modality;
use sogclr::loss::{
    Dcl, Debiased, EmbeddingSets, FlatNce, Gamma, Individual, Loss, LossInput, LossOutput, NtXent, SetName, SogClr,
    SupCon, Variant,
};
use sogclr::math::Matrix;
use sogclr::method::{FeatureQueue, MethodConfig, Setting};
use sogclr::params::HostTensor;
use sogclr::state::{LOG_U, SampleState, TAU};

/// Raw embeddings as View(0), View(1), …
pub fn views(raw: &[Matrix]) -> EmbeddingSets {
    EmbeddingSets::new(raw.iter().enumerate().map(|(k, m)| (SetName::View(k), m.clone())).collect())
}

/// One evaluation on raw view embeddings; gradients w.r.t. the raw embeddings.
pub fn evaluate(
    loss: &dyn Loss,
    raw: &[Matrix],
    ids: &[usize],
    state: &SampleState,
    large_views: usize,
) -> (LossOutput, Vec<Matrix>) {
    evaluate_labelled(loss, raw, ids, None, state, large_views)
}

/// The same, with a label for each sample of the batch.
pub fn evaluate_labelled(
    loss: &dyn Loss,
    raw: &[Matrix],
    ids: &[usize],
    labels: Option<&[u32]>,
    state: &SampleState,
    large_views: usize,
) -> (LossOutput, Vec<Matrix>) {
    let sets = views(raw);
    let out = loss.forward(&LossInput { labels, large_views, ..LossInput::new(&sets, ids, state) }).unwrap();
    let grads = out.grads.iter().map(|(_, dh)| dh.clone()).collect();
    (out, grads)
}

fn assert_close(what: &str, ours: f64, golden: f64, scale: f64, tolerance: f64) {
    let error = (ours - golden).abs();
    assert!(error <= tolerance * scale.max(1e-3), "{what}: ours {ours}, golden {golden}, error {error}");
}

// Long: every loss goes the same way, field by field.
#[test]
fn losses_gradients_and_state_follow_pytorch() {
    let (golden, info) = (Golden::open("losses.safetensors"), json("losses.json"));
    let (z_a, z_b, ids) = (golden.get("z_a"), golden.get("z_b"), golden.get("ids"));
    let samples = info["samples"].as_u64().unwrap() as usize;
    let number = |key: &str| info[key].as_f64().unwrap();
    let individual: Individual = serde_json::from_value(info["individual"].clone()).unwrap();
    let labels: Vec<u32> = serde_json::from_value(info["labels"].clone()).unwrap();
    for kind in info["kinds"].as_array().unwrap().iter().map(|kind| kind.as_str().unwrap()) {
        for (c, config) in info["configs"].as_array().unwrap().iter().enumerate() {
            let temperature = config["tau"].as_f64().unwrap();
            let gamma = Gamma::Constant { value: config["gamma"].as_f64().unwrap() };
            let variant = match kind {
                "default" => Variant::Default,
                "algorithm1" => Variant::Algorithm1,
                "released" => Variant::Released,
                "tf" => Variant::Tf,
                _ => Variant::Default,
            };
            let epsilon = if kind == "algorithm1" { config["epsilon"].as_f64().unwrap() } else { 0.0 };
            let by_label = kind == "sogclr_labels";
            let individual = (kind == "isogclr").then_some(individual);
            let loss: Box<dyn Loss> = match kind {
                "simclr" => Box::new(NtXent { temperature, alpha: None }),
                "simo" => Box::new(NtXent { temperature, alpha: Some(number("alpha")) }),
                "dcl" => Box::new(Dcl { temperature, sigma: None }),
                "dclw" => Box::new(Dcl { temperature, sigma: Some(number("sigma")) }),
                "flatnce" => Box::new(FlatNce { temperature }),
                "debiased" => Box::new(Debiased { temperature, prior: number("prior") }),
                "supcon" => Box::new(SupCon { temperature }),
                _ => Box::new(SogClr { variant, epsilon, by_label, individual, ..SogClr::new(temperature, gamma) }),
            };
            // exp(s/τ) magnifies the f32 rounding of s by 1/τ.
            let tolerance = 1e-6 / temperature;
            let mut state = SampleState::new(samples, loss.columns());
            for t in 0..z_a.len_of(Axis(0)) {
                let step = |all: &ndarray::ArrayD<f64>| {
                    all.index_axis(Axis(0), t).into_dimensionality::<Ix2>().unwrap().mapv(|v| v as f32)
                };
                let batch: Vec<usize> = ids.index_axis(Axis(0), t).iter().map(|&id| id as usize).collect();
                let of_batch: Vec<u32> = batch.iter().map(|&id| labels[id]).collect();
                let views = [step(&z_a), step(&z_b)];
                let (out, grads) = evaluate_labelled(loss.as_ref(), &views, &batch, Some(&of_batch), &state, 2);
                let want = |field: &str| golden.get(&format!("{kind}.c{c}.{field}"));
                let label = format!("{kind}.c{c} step {t}");
                let scalar = |field| want(field).into_dimensionality::<Ix1>().unwrap()[t];
                let loss_scale = scalar("loss").abs().max(1.0);
                assert_close(&format!("{label} loss"), out.loss, scalar("loss"), loss_scale, tolerance);
                if golden.has(&format!("{kind}.c{c}.objective")) {
                    let ours = out.objective.unwrap();
                    assert_close(&format!("{label} objective"), ours, scalar("objective"), 1.0, tolerance);
                }
                for (view, field) in ["grad_a", "grad_b"].into_iter().enumerate() {
                    let golden = step(&want(field));
                    let scale = golden.iter().fold(0.0_f64, |max, v| max.max(f64::from(v.abs())));
                    for (ours, golden) in grads[view].iter().zip(&golden) {
                        assert_close(
                            &format!("{label} {field}"),
                            (*ours).into(),
                            (*golden).into(),
                            scale,
                            20.0 * tolerance,
                        );
                    }
                }
                state.commit(out.update);
                if kind == "isogclr" {
                    for (id, &golden) in want("tau").index_axis(Axis(0), t).iter().enumerate() {
                        let ours = state.seen(TAU, id).unwrap_or(temperature);
                        assert_close(&format!("{label} tau[{id}]"), ours, golden, 1.0, 10.0 * tolerance);
                    }
                }
                if golden.has(&format!("{kind}.c{c}.log_u")) {
                    for (id, &golden) in want("log_u").index_axis(Axis(0), t).iter().enumerate() {
                        match state.seen(LOG_U, id) {
                            None => assert!(golden.is_nan(), "{label}: sample {id} should be seen"),
                            Some(ours) => {
                                assert_close(&format!("{label} ln u[{id}]"), ours, golden, 1.0, 10.0 * tolerance)
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Step `t` of a golden tensor `[T, B, D]`.
fn step_of(golden: &Golden, name: &str, t: usize) -> Matrix {
    golden.get(name).index_axis(Axis(0), t).into_dimensionality::<Ix2>().unwrap().mapv(|v| v as f32)
}

/// One evaluation on raw embeddings of any sets, with a queue; gradients w.r.t. the raw embeddings, by set.
pub fn evaluate_sets(
    loss: &dyn Loss,
    raw: &[(SetName, Matrix)],
    queue: ArrayView2<f32>,
) -> (LossOutput, EmbeddingSets, Vec<(SetName, Matrix)>) {
    let sets = EmbeddingSets::new(raw.to_vec());
    let ids: Vec<usize> = (0..raw[0].1.nrows()).collect();
    let state = SampleState::new(ids.len(), &[]);
    let input = LossInput { queue: Some(queue), ..LossInput::new(&sets, &ids, &state) };
    let out = loss.forward(&input).unwrap();
    let grads = out.grads.clone();
    (out, sets, grads)
}

#[test]
fn losses_with_keys_and_a_queue_follow_pytorch() {
    let (golden, info) = (Golden::open("losses.safetensors"), json("losses.json"));
    let names = [
        ("z_a", SetName::View(0)),
        ("z_b", SetName::View(1)),
        ("keyed.k_b", SetName::Key(1)),
        ("keyed.p_a", SetName::Predictor(0)),
        ("keyed.p_b", SetName::Predictor(1)),
        ("keyed.z_jigsaw", SetName::Jigsaw),
    ];
    let setting =
        Setting { is_small: false, is_grey: false, modality: Modality::Images, samples: 100, batch: 4, epochs: 10 };
    for kind in info["keyed"].as_array().unwrap().iter().map(|kind| kind.as_str().unwrap()) {
        for (c, config) in info["configs"].as_array().unwrap().iter().enumerate() {
            let mut method = MethodConfig::named(kind.trim_end_matches("_keys"), &setting).unwrap();
            let mut table = toml::Table::try_from(&method).unwrap();
            table.insert("temperature".into(), config["tau"].as_f64().unwrap().into());
            if kind == "simo_keys" {
                table.insert("alpha".into(), info["alpha"].as_f64().unwrap().into());
            }
            method = table.try_into().unwrap();
            let loss = method.spec().loss();
            let tolerance = 1e-6 / config["tau"].as_f64().unwrap();

            let first = golden.get("keyed.queue").mapv(|v| v as f32);
            let mut queue = FeatureQueue::new(first.shape()[0], first.shape()[1], 0);
            let host = HostTensor { shape: first.shape().to_vec(), values: first.iter().copied().collect() };
            let next = HostTensor { shape: vec![1], values: vec![0.0] };
            queue.import(&[("queue".to_owned(), host), ("queue_next".to_owned(), next)].into()).unwrap();
            for t in 0..info["steps"].as_u64().unwrap() as usize {
                let raw: Vec<(SetName, Matrix)> =
                    names.iter().map(|(name, set)| (*set, step_of(&golden, name, t))).collect();
                let (out, sets, grads) = evaluate_sets(loss.as_ref(), &raw, queue.rows());
                let label = format!("{kind}.c{c} step {t}");
                let want = golden.get(&format!("{kind}.c{c}.loss"))[[t]];
                assert_close(&label, out.loss, want, want.abs().max(1.0), tolerance);
                for (set, grad) in &grads {
                    let (name, _) = names.iter().find(|(_, other)| other == set).unwrap();
                    let field = format!("{kind}.c{c}.grad_{}", name.trim_start_matches("keyed."));
                    let want = step_of(&golden, &field, t);
                    let scale = want.iter().fold(0.0_f64, |max, v| max.max(f64::from(v.abs())));
                    for (ours, want) in grad.iter().zip(&want) {
                        let label = format!("{label} {field}");
                        assert_close(&label, (*ours).into(), (*want).into(), scale, 20.0 * tolerance);
                    }
                }
                let count = if matches!(kind, "infomin" | "nnclr") { 2 } else { 1 };
                assert_eq!(grads.len(), count, "{label}: gradients");
                let kept = if kind == "nnclr" { SetName::View(0) } else { SetName::Key(1) };
                queue.push(sets.get(kept).unwrap().unit());
            }
            let want = golden.get(&format!("{kind}.c{c}.queue"));
            for (ours, want) in queue.rows().iter().zip(&want) {
                assert!((f64::from(*ours) - want).abs() < 1e-6, "{kind}: the queue's order");
            }
        }
    }
}

#[test]
fn multi_crop_follows_pytorch() {
    let golden = Golden::open("losses.safetensors");
    let views = golden.get("multicrop.views");
    let raw: Vec<Matrix> =
        views.axis_iter(Axis(0)).map(|v| v.into_dimensionality::<Ix2>().unwrap().mapv(|v| v as f32)).collect();
    let ids: Vec<usize> = golden.get("multicrop.ids").iter().map(|&id| id as usize).collect();
    let before: Vec<f32> = golden.get("multicrop.log_u_before").iter().map(|&v| v as f32).collect();
    let mut state = SampleState::from_columns(before.len(), [(LOG_U.to_owned(), before)].into());
    let loss = SogClr::new(0.1, Gamma::Constant { value: 0.9 });
    let (out, grads) = evaluate(&loss, &raw, &ids, &state, 2);
    assert!((out.loss - golden.get("multicrop.loss")[[0]]).abs() < 1e-5);
    let want = golden.get("multicrop.grad");
    for (view, grad) in grads.iter().enumerate() {
        for ((i, k), &ours) in grad.indexed_iter() {
            assert!((f64::from(ours) - want[[view, i, k]]).abs() < 2e-5, "view {view} sample {i}");
        }
    }
    state.commit(out.update);
    for (id, &want) in golden.get("multicrop.log_u").iter().enumerate() {
        assert!(state.seen(LOG_U, id).map_or(want.is_nan(), |ours| (ours - want).abs() < 1e-4), "sample {id}");
    }
}

/// γ = 1 is exactly τ × the gradient of DCL (eq. 6), in absolute scale.
#[test]
fn without_memory_the_gradient_is_tau_times_dcl() {
    let (golden, info) = (Golden::open("losses.safetensors"), json("losses.json"));
    for (c, config) in info["configs"].as_array().unwrap().iter().enumerate() {
        let temperature = config["tau"].as_f64().unwrap();
        let loss = SogClr::new(temperature, Gamma::Constant { value: 1.0 });
        let t = 5;
        let step = |name: &str| {
            golden.get(name).index_axis(Axis(0), t).into_dimensionality::<Ix2>().unwrap().mapv(|v| v as f32)
        };
        // An old u of any size must not matter.
        let state = SampleState::from_columns(4, [(LOG_U.to_owned(), vec![3.0; 4])].into());
        let (_, grads) = evaluate(&loss, &[step("z_a"), step("z_b")], &[0, 1, 2, 3], &state, 2);
        for (view, field) in ["grad_a", "grad_b"].into_iter().enumerate() {
            let dcl = step(&format!("dcl.c{c}.{field}"));
            let scale = dcl.iter().fold(0.0_f32, |max, v| max.max(v.abs())) * temperature as f32;
            for (ours, dcl) in grads[view].iter().zip(&dcl) {
                let error = (ours - temperature as f32 * dcl).abs();
                assert!(
                    error < 1e-5 / temperature as f32 * scale,
                    "config {c}: {ours} vs {}",
                    temperature as f32 * dcl
                );
            }
        }
    }
}
