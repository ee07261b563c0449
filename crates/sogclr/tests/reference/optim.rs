//! Optimisers and schedules against PyTorch and the formulas of `reference/optim.py`.

use crate::files::json;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use serde_json::Value;
use sogclr::loss::Gamma;
use sogclr::optim::{AdamW, Lars, LearningRate, NamedGrads, Optimizer, OptimizerConfig, PaperMomentum, Scaling, Sgd};
use sogclr::params::export;

#[derive(Module, Debug)]
struct Pair {
    w: Param<Tensor<2>>,
    b: Param<Tensor<1>>,
}

fn flat(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(items) => items.iter().flat_map(flat).collect(),
        number => vec![number.as_f64().unwrap() as f32],
    }
}

fn optimizer(case: &Value) -> OptimizerConfig {
    let number = |key: &str| case[key].as_f64().unwrap();
    match case["kind"].as_str().unwrap() {
        "sgd" => OptimizerConfig::Sgd(Sgd {
            momentum: number("momentum"),
            nesterov: case["nesterov"].as_bool().unwrap(),
            weight_decay: number("weight_decay"),
        }),
        "adamw" => OptimizerConfig::Adamw(AdamW {
            beta1: case["betas"][0].as_f64().unwrap(),
            beta2: case["betas"][1].as_f64().unwrap(),
            epsilon: number("eps"),
            weight_decay: number("weight_decay"),
        }),
        "paper_momentum" => OptimizerConfig::Momentum(PaperMomentum { beta: number("beta") }),
        "lars" => OptimizerConfig::Lars(Lars {
            momentum: number("momentum"),
            weight_decay: number("weight_decay"),
            trust: number("trust"),
        }),
        other => panic!("unknown optimiser {other}"),
    }
}

#[test]
fn optimisers_follow_their_references_through_a_save_and_restore() {
    let golden = json("optim.json");
    let device = Device::flex().autodiff();
    for case in golden["cases"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let parameter = |key: &str| flat(&case["initial"][key]);
        let mut pair = Pair {
            w: Param::from_tensor(Tensor::from_data(TensorData::new(parameter("w"), [3, 4]), &device)),
            b: Param::from_tensor(Tensor::from_data(TensorData::new(parameter("b"), [4]), &device)),
        };
        let mut optim = Optimizer::new(optimizer(case));
        for t in 0..6 {
            if t == 3 {
                let (state, model) = (optim.export(), export(&pair));
                optim = Optimizer::import(optimizer(case), 3, &state, &[&model], &Device::flex()).unwrap();
            }
            let mut grads = NamedGrads::default();
            for key in ["w", "b"] {
                grads.insert(key, Tensor::from_floats(flat(&golden["grads"][key][t]).as_slice(), &Device::flex()));
            }
            pair = optim.step(pair, grads, case["lr"][t].as_f64().unwrap());
            for (key, host) in export(&pair) {
                let want = flat(&case["after"][&key][t]);
                for (ours, want) in host.values.iter().zip(&want) {
                    assert!((ours - want).abs() < 2e-6, "{name} step {t} {key}: {ours} vs {want}");
                }
            }
        }
    }
}

#[test]
fn schedules_equal_their_formulas() {
    let golden = json("optim.json");
    let table = &golden["warmup_cosine"];
    let rate = LearningRate {
        base: table["peak"].as_f64().unwrap(),
        scaling: Scaling::None,
        warmup_epochs: 0.5,
        warmup_steps: None,
    };
    // 2 epochs of 10 steps: T = 20, W = 5.
    for (t, want) in table["lr"].as_array().unwrap().iter().enumerate() {
        assert!((rate.at(t, 64, 2, 10) - want.as_f64().unwrap()).abs() < 1e-12, "step {t}");
    }
    let table = &golden["cosine_gamma"];
    let gamma = Gamma::Cosine { min: table["gamma_min"].as_f64().unwrap(), epochs: 5 };
    for (epoch, want) in table["gamma"].as_array().unwrap().iter().enumerate() {
        assert!((gamma.at(epoch, 0.0) - want.as_f64().unwrap()).abs() < 1e-12, "epoch {epoch}");
    }
    let table = &golden["scaling"];
    for (k, batch) in table["batch"].as_array().unwrap().iter().enumerate() {
        let peak = |base, scaling| {
            LearningRate { base, scaling, warmup_epochs: 0.0, warmup_steps: None }
                .peak(batch.as_u64().unwrap() as usize)
        };
        assert!((peak(0.075, Scaling::Sqrt) - table["square_root"][k].as_f64().unwrap()).abs() < 1e-12);
        assert!((peak(0.3, Scaling::Linear) - table["linear"][k].as_f64().unwrap()).abs() < 1e-12);
    }
}
