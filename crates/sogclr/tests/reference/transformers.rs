//! Transformers by our kernels, under each instruction set, and by the plain burn operations of every other backend.

use crate::clip::filled;
use crate::resnet::{gradients, images, tensor, values};
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use sogclr::cpu::{Engine, Isa};
use sogclr::encoder::{ClipResNet, ClipVit, Compute, Network, Pass, Pool, Precision, TextConfig, TextEncoder, Vit};
use std::collections::BTreeMap;

pub type Named = BTreeMap<String, Vec<f32>>;

/// The output and all gradients of Σ output·probe, by name.
pub fn passed<M: Module>(net: &M, out: &Tensor<2>) -> Named {
    let probe = tensor("probe", out.dims(), &out.device());
    let mut all = gradients(net, &(out.clone() * probe).sum().backward());
    all.insert("output".into(), values(out.clone()));
    all
}

fn of_images<N: Network + Module>(net: N, size: usize, compute: &Compute) -> Named {
    let net = filled(net, "");
    passed(&net, &net.forward(images("input", [3, 3, size, size], compute), &mut Pass::Eval))
}

fn of_texts(compute: &Compute) -> Named {
    let config = TextConfig { width: 24, layers: 2, heads: 2, context: 60, vocabulary: 50, output: None };
    let net = filled(TextEncoder::new(&config, 6, compute), "");
    // Longer than the kernels take at once.
    let ids: Vec<u32> = (0..2 * 53).map(|k| k * 7 % 50).collect();
    passed(&net, &net.forward(&ids, &[52, 20], compute.device()))
}

/// Heads of 8, 10, 12 and 4 values; 26, 17, 53 and 5 tokens.
pub fn all(compute: &Compute) -> [(&'static str, Named); 5] {
    let vit = |pool| of_images(Vit::with_shape(24, 2, 3, 2, pool, 10, 3, compute), 10, compute);
    let clip_vit = ClipVit::with_shape((20, 2, 2), 3, 6, (12, 3), compute);
    let clip_resnet = ClipResNet::with_shape([1, 1, 1, 1], 2, 16, 6, (64, 3), compute);
    [
        ("vit, class token", vit(Pool::Class)),
        ("vit, mean", vit(Pool::Mean)),
        ("clip-vit", of_images(clip_vit, 12, compute)),
        ("text", of_texts(compute)),
        ("clip-resnet", of_images(clip_resnet, 64, compute)),
    ]
}

fn rms(values: impl Iterator<Item = f32>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), v| (sum + f64::from(v).powi(2), count + 1));
    (sum / f64::from(count.max(1))).sqrt()
}

#[test]
fn kernels_and_plain_operations_agree() {
    let want = all(&Compute::plain(Device::flex()).autodiff());
    for isa in Isa::available() {
        let compute = Compute::cpu_with(Engine { isa, winograd: false }).autodiff();
        for ((what, ours), (_, want)) in all(&compute).iter().zip(&want) {
            assert!(ours.keys().eq(want.keys()), "{what}");
            let typical = want.values().map(|v| rms(v.iter().copied())).sum::<f64>() / want.len() as f64;
            for (name, want) in want {
                let error = rms(ours[name].iter().zip(want).map(|(a, b)| a - b));
                let size = rms(want.iter().copied());
                assert!(error <= 1e-5 * (size + typical), "{isa} {what} {name}: error {error} of {size}");
            }
        }
    }
}

#[test]
fn bytes_do_not_depend_on_the_number_of_threads() {
    for precision in [Precision::F32, Precision::Bf16] {
        let run = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let all = pool.install(|| all(&Compute::cpu().with_precision(precision).autodiff()));
            all.map(|(_, named)| named.into_values().flatten().map(f32::to_bits).collect::<Vec<u32>>())
        };
        let one = run(1);
        assert!([2, 3, 5].iter().all(|&threads| run(threads) == one), "{precision}");
    }
}
