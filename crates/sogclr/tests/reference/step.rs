//! The training step: chunks, groups of batch norm, and what follows the model.

use crate::files::hashed;
use crate::resnet::arranged;
use burn::tensor::{Gradients, Tensor, TensorData};
use ndarray::ArrayView2;
use sogclr::batch::{Batch, Crops, Share};
use sogclr::comm::Group;
use sogclr::data::Modality;
use sogclr::encoder::{Compute, Head, HeadConfig, Model, ModelConfig, Pass, ResNetConfig, ResNetName, Stem};
use sogclr::loss::{Loss, SetName};
use sogclr::math::{Layout, Matrix};
use sogclr::method::{BuildContext, Method, MethodConfig, MomentumEncoder, Setting, StepEnd};
use sogclr::optim::{NamedGrads, Optimizer, OptimizerConfig, Sgd};
use sogclr::params::{NamedTensors, export, import, initialise};
use sogclr::train::{Learner, StepOutput, StepPlan};

const BATCH: usize = 8;
const SIZE: usize = 8;
const SAMPLES: usize = 100;
const VIEW_METHODS: [&str; 11] =
    ["sogclr", "simclr", "dcl", "flatnce", "simo", "moco", "nnclr", "infomin", "isogclr", "debiased", "supcon"];
const SEED: u64 = 3;

fn head(norm: bool) -> HeadConfig {
    HeadConfig { layers: 2, hidden: 16, output: 8, norm, norm_output: true }
}

fn model(head: &HeadConfig) -> ModelConfig {
    let encoder = ResNetConfig { name: ResNetName::Resnet8, width: 0.5, stem: Stem::Cifar };
    ModelConfig { encoder: encoder.into(), head: Some(head.clone()), text: None, image_size: SIZE, channels: 3 }
}

/// Images `[3, size, size]` as the kernels take them.
fn pixels(planes: Vec<f32>, size: usize) -> Vec<f32> {
    arranged(planes, 3, size, Layout::ChannelsLast)
}

/// Crops whose views are their image with noise, and tiles for a jigsaw.
fn batch(groups: &[(usize, usize)], index: usize) -> Batch {
    let crops = |count: usize, size: usize| {
        let area = 3 * size * size;
        let images = hashed("images", BATCH * area);
        let noise = hashed(&format!("noise {index}"), count * BATCH * area);
        let planes = noise.iter().enumerate().map(|(i, n)| images[i % images.len()] + 0.5 * n).collect();
        Crops { count, size, channels: 3, layout: Layout::ChannelsLast, pixels: pixels(planes, size) }
    };
    Batch {
        step: index,
        epoch: 0,
        ids: (0..BATCH).collect(),
        share: Share::whole(BATCH),
        labels: None,
        crops: groups.iter().map(|&(count, size)| crops(count, size)).collect(),
        tiles: Some(crops(9, 4)),
        texts: None,
    }
}

struct Training(Learner);

impl Training {
    fn new(name: &str, head: &HeadConfig, keys: &[(&str, toml::Value)]) -> Self {
        let compute = Compute::cpu().autodiff();
        let (is_small, is_grey, modality) = (true, false, Modality::Images);
        let setting = Setting { is_small, is_grey, modality, samples: SAMPLES, batch: BATCH, epochs: 10 };
        let config = MethodConfig::named(name, &setting).unwrap();
        let mut table = toml::Table::try_from(&config).unwrap();
        keys.iter().for_each(|(key, value)| drop(table.insert((*key).into(), value.clone())));
        let config: MethodConfig = table.try_into().unwrap();
        let model = model(head);
        let context = BuildContext { model: &model, seed: SEED, compute: compute.clone() };
        let method = config.spec().build(&context);
        let sgd = Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let optimizer = Optimizer::new(OptimizerConfig::Sgd(sgd));
        Self(Learner::new(Model::new(&model, SEED, &compute), optimizer, method, SAMPLES, &compute))
    }

    fn step(&mut self, batch: &Batch, chunk: usize) -> StepOutput {
        self.step_at(batch, chunk, 0.1)
    }

    fn step_at(&mut self, batch: &Batch, chunk: usize, lr: f64) -> StepOutput {
        self.0.step(batch, &StepPlan { chunk, lr, peak_lr: lr, total_steps: 1000 }, &Group::solo()).unwrap()
    }

    fn model(&self) -> NamedTensors {
        export(self.0.model())
    }
}

/// A method whose batch norm sees `groups` groups one at a time.
struct Grouped {
    inner: Box<dyn Method>,
    groups: usize,
}

impl Method for Grouped {
    fn loss(&self) -> &dyn Loss {
        self.inner.loss()
    }
    fn query_views(&self, views: usize) -> usize {
        self.inner.query_views(views)
    }
    fn norm_groups(&self) -> usize {
        self.groups
    }
    fn keys(&self, batch: &Batch, chunk: usize, group: &Group) -> Vec<(SetName, Matrix)> {
        self.inner.keys(batch, chunk, group)
    }
    fn further_sets(
        &self,
        model: &Model,
        batch: &Batch,
        rows: &[usize],
        views: &[(SetName, Tensor<2>)],
        pass: &mut Pass,
    ) -> Vec<(SetName, Tensor<2>)> {
        self.inner.further_sets(model, batch, rows, views, pass)
    }
    fn queue(&self) -> Option<ArrayView2<'_, f32>> {
        self.inner.queue()
    }
    fn collect(&self, gradients: &mut Gradients) -> NamedGrads {
        self.inner.collect(gradients)
    }
    fn after_step(&mut self, end: StepEnd) {
        self.inner.after_step(end);
    }
    fn export(&self) -> NamedTensors {
        self.inner.export()
    }
}

fn largest_difference(a: &NamedTensors, b: &NamedTensors) -> f32 {
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    let pairs = a.values().zip(b.values()).flat_map(|(a, b)| a.values.iter().zip(&b.values));
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Gradient caching is the whole batch at once, batch norm per chunk in both: loss, parameters after the update, running
/// statistics, and the method's own modules.
#[test]
fn micro_batches_give_the_gradient_of_the_whole_batch() {
    let views: &[(usize, usize)] = &[(2, SIZE)];
    for (name, views) in [("sogclr", &[(2, SIZE), (2, 6)][..]), ("simclr", views), ("nnclr", views), ("infomin", views)]
    {
        let own: &[(&str, toml::Value)] = if name == "infomin" { &[("norm_groups", 2.into())] } else { &[] };
        let mut whole = Training::new(name, &head(name != "infomin"), own);
        whole.0.method = Box::new(Grouped { inner: whole.0.method, groups: 2 });
        let mut chunked = Training::new(name, &head(name != "infomin"), own);
        let mut coarse = Training::new(name, &head(name != "infomin"), own);
        for index in 0..2 {
            let batch = batch(views, index);
            let (a, b) = (whole.step(&batch, BATCH), chunked.step(&batch, BATCH / 2));
            coarse.step(&batch, BATCH);
            assert!((a.loss - b.loss).abs() < 1e-5, "{name}: {} vs {}", a.loss, b.loss);
        }
        let difference = largest_difference(&whole.model(), &chunked.model());
        assert!(difference < 2e-5, "{name}: {difference}");
        let difference = largest_difference(&whole.0.method.export(), &chunked.0.method.export());
        assert!(difference < 2e-5, "{name}: {difference} in the method's own tensors");
        let difference = largest_difference(&coarse.model(), &chunked.model());
        match name {
            "infomin" => assert!(difference < 2e-5, "its own two groups are the chunks: {difference}"),
            _ => assert!(difference > 1e-4, "{name}: batch norm per chunk shows"),
        }
    }
}

/// Each running statistic moves once in a step: 0.9·old + 0.1·mean over the chunks of their statistics.
#[test]
fn running_statistics_move_once_in_a_step() {
    let name = "encoder.bn1.running_mean";
    let batch = batch(&[(2, SIZE)], 0);
    let moved = |chunk: usize| {
        let mut training = Training::new("simclr", &head(true), &[]);
        training.step(&batch, chunk);
        training.model()[name].values.clone()
    };
    // The mean over chunks of equal size is the mean over the batch, and the first layer sees the same pixels. Two
    // moves would come nearer to it: 0.19 of the way instead of 0.1.
    for (a, b) in moved(BATCH).iter().zip(moved(2)) {
        assert!((a - b).abs() < 1e-6 && a.abs() > 1e-5, "{a} vs {b}");
    }
}

#[test]
fn momentum_weights_follow_by_hand() {
    let mut training = Training::new("moco", &head(false), &[("momentum", 0.75.into())]);
    let (start, before) = (training.model(), training.0.method.export());
    for (name, tensor) in &start {
        assert_eq!(before[&format!("momentum.{name}")], *tensor, "{name}: it starts as a copy");
    }
    let mut expected = start;
    for index in 0..3 {
        training.step(&batch(&[(2, SIZE)], index), BATCH);
        let (model, method) = (training.model(), training.0.method.export());
        for (name, k) in &mut expected {
            if !name.contains("running_") {
                k.values.iter_mut().zip(&model[name].values).for_each(|(k, q)| *k = 0.75 * *k + 0.25 * q);
            }
            let ours = &method[&format!("momentum.{name}")].values;
            assert!(ours.iter().zip(&k.values).all(|(a, b)| (a - b).abs() < 1e-6), "{name} after step {index}");
        }
    }
    assert!(largest_difference(&expected, &training.model()) > 1e-3, "the model moved away");
}

/// Weights that were not drawn reach the momentum encoder too.
#[test]
fn a_momentum_encoder_starts_from_the_models_weights() {
    for method in ["moco", "simo", "infomin"] {
        let mut training = Training::new(method, &head(false), &[]);
        let other = Training::new("simclr", &head(false), &[]);
        training.step(&batch(&[(2, SIZE)], 0), BATCH);
        training.0.method.starts_from(other.0.model()).unwrap();
        let (copied, given) = (training.0.method.export(), other.model());
        for (name, tensor) in &given {
            assert_eq!(copied[&format!("momentum.{name}")], *tensor, "{method}: {name}");
        }
    }
}

/// MoCo's queue after three batches holds their keys, oldest first from the place written next.
#[test]
fn the_queue_holds_the_keys_of_earlier_batches_in_order() {
    let mut training = Training::new("moco", &head(false), &[("queue", 20.into()), ("norm_groups", 2.into())]);
    let mut seen = Vec::new();
    for index in 0..3 {
        let out = training.step(&batch(&[(2, SIZE)], index), BATCH);
        seen.extend(out.sets.get(SetName::Key(1)).unwrap().unit().matrix().outer_iter().map(|row| row.to_vec()));
    }
    let tensors = training.0.method.export();
    assert_eq!(tensors["queue_next"].values, [4.0], "24 keys in a ring of 20");
    for (row, stored) in tensors["queue"].values.chunks(8).enumerate() {
        let newest = if row < 4 { 20 + row } else { row };
        assert_eq!(stored, seen[newest], "row {row}");
    }
}

fn follower(head: &HeadConfig) -> MomentumEncoder {
    let context = BuildContext { model: &model(head), seed: SEED, compute: Compute::cpu().autodiff() };
    MomentumEncoder::new(&context, 0.9)
}

/// The keys of the second view, each at the place of its own sample.
fn keys(follower: &MomentumEncoder, batch: &Batch, order: &[usize], at_once: usize) -> Matrix {
    let h = follower.embed(&batch.crops[0], 1, order, at_once, &Group::solo());
    let mut keys = Matrix::zeros(h.dim());
    order.iter().zip(h.outer_iter()).for_each(|(&row, h)| keys.row_mut(row).assign(&h));
    keys
}

/// Batch norm sees one group of keys at a time.
#[test]
fn keys_are_normalised_in_shuffled_groups() {
    let head = head(false);
    let follower = follower(&head);
    let batch = batch(&[(2, SIZE)], 0);
    let close = |a: ndarray::ArrayView1<f32>, b: ndarray::ArrayView1<f32>| (&a - &b).iter().all(|d| d.abs() < 1e-5);
    let order = [5, 2, 7, 0, 1, 6, 3, 4];
    let shuffled = keys(&follower, &batch, &order, 4);
    for group in order.chunks(4) {
        let mut sorted = group.to_vec();
        sorted.sort_unstable();
        let model = Model::new(&model(&head), SEED, &Compute::cpu());
        let h = model
            .forward(batch.crops[0].tensor(1..2, &sorted, Compute::cpu().device()), &mut Pass::Batch(&Group::solo()));
        let h = Matrix::from_shape_vec((4, 8), h.into_data().try_to_vec::<f32>().unwrap()).unwrap();
        for (place, &row) in sorted.iter().enumerate() {
            assert!(close(shuffled.row(row), h.row(place)), "sample {row}");
        }
    }
    let plain = keys(&follower, &batch, &[0, 1, 2, 3, 4, 5, 6, 7], 4);
    assert!((0..BATCH).any(|row| !close(shuffled.row(row), plain.row(row))), "the groups matter");
    let one_group = keys(&follower, &batch, &order, BATCH);
    let in_order = keys(&follower, &batch, &[0, 1, 2, 3, 4, 5, 6, 7], BATCH);
    assert!((0..BATCH).all(|row| close(one_group.row(row), in_order.row(row))), "shuffling alone changes nothing");
}

/// MoCo deals its keys to the groups in an order of its own, another in every step.
#[test]
fn moco_shuffles_the_groups_of_its_keys_in_every_step() {
    let training = Training::new("moco", &head(false), &[("norm_groups", 2.into())]);
    let in_order = keys(&follower(&head(false)), &batch(&[(2, SIZE)], 0), &[0, 1, 2, 3, 4, 5, 6, 7], 4);
    let keys = |index: usize| {
        let batch = Batch { step: index, ..batch(&[(2, SIZE)], 0) };
        training.0.method.keys(&batch, BATCH, &Group::solo()).remove(0).1
    };
    let far = |a: &Matrix, b: &Matrix| (a - b).iter().any(|d| d.abs() > 1e-4);
    assert!(far(&keys(0), &in_order) && far(&keys(0), &keys(1)));
    assert!(!far(&keys(1), &keys(1)), "a function of the step");
}

/// A head without batch norm: linear layers with bias, ReLU between them.
#[test]
fn a_head_without_batch_norm_is_its_formula() {
    let config = HeadConfig { layers: 3, hidden: 5, output: 2, norm: false, norm_output: true };
    let compute = Compute::cpu();
    let net = initialise(Head::new(&config, 4, &compute), 1);
    let mut tensors = export(&net);
    // Biases start at zero; these are not.
    for (name, tensor) in &mut tensors {
        if name.ends_with("bias") {
            tensor.values.iter_mut().enumerate().for_each(|(i, v)| *v = 0.3 - 0.2 * i as f32);
        }
    }
    let net = import(net, &tensors).unwrap();
    let x = hashed("features", 3 * 4);
    let out = net.forward(
        Tensor::from_data(TensorData::new(x.clone(), [3, 4]), compute.device()),
        &mut Pass::Batch(&Group::solo()),
    );
    let ours = out.into_data().try_to_vec::<f32>().unwrap();
    for (row, ours) in x.chunks(4).zip(ours.chunks(2)) {
        let mut h: Vec<f64> = row.iter().map(|&v| f64::from(v)).collect();
        for layer in 0..3 {
            let (w, b) =
                (&tensors[&format!("layers.{layer}.linear.weight")], &tensors[&format!("layers.{layer}.linear.bias")]);
            let unit = |o: usize| {
                let weights = &w.values[o * h.len()..][..h.len()];
                let sum = weights.iter().zip(&h).map(|(w, h)| f64::from(*w) * h).sum::<f64>() + f64::from(b.values[o]);
                if layer < 2 { sum.max(0.0) } else { sum }
            };
            h = (0..b.values.len()).map(unit).collect();
        }
        assert!(ours.iter().zip(&h).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-5), "{ours:?} {h:?}");
    }
}

/// Every method lowers its objective on one small batch, and its own modules move.
#[test]
fn every_method_learns_a_few_images() {
    const BATCHES: usize = 12;
    const STEPS: usize = 10 * BATCHES;
    for name in VIEW_METHODS {
        let with_keys = ["moco", "infomin"].contains(&name);
        let mut training = Training::new(name, &head(!with_keys), &[]);
        let start = training.0.method.export();
        let objectives: Vec<f64> = (0..STEPS)
            .map(|step| {
                let part = step % BATCHES;
                let mut batch = batch(&[(2, SIZE)], 0);
                let images = pixels(hashed(&format!("images {part}"), BATCH * 3 * SIZE * SIZE), SIZE);
                let all = batch.crops[0].pixels.iter_mut().zip(images.iter().cycle());
                all.for_each(|(pixel, image)| *pixel += 2.0 * image);
                batch.ids = (part * BATCH..(part + 1) * BATCH).collect();
                batch.labels = Some((0..BATCH as u32).map(|id| id / 2).collect());
                training.step_at(&batch, BATCH, 0.01).objective.unwrap()
            })
            .collect();
        // A queue is random at first, which makes the first objectives low.
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let (first, last) = (mean(&objectives[4..16]), mean(&objectives[STEPS - BATCHES..]));
        assert!(last < first - 0.05, "{name}: from {first} to {last}");
        for (tensor, values) in training.0.method.export() {
            let is_own = ["predictor.", "jigsaw."].iter().any(|own| tensor.starts_with(own));
            assert!(!is_own || values != start[&tensor], "{name}: {tensor} stood still");
        }
    }
}
