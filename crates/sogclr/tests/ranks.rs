//! Several ranks train what one process trains: the same loss, gradients and state, and the same weights up to the rounding
//! of sums in another order. The ranks are threads here; `tests/mpi` trains with processes.

use burn::tensor::Device;
use sogclr::batch::{Batch, Crops, Share, Texts};
use sogclr::comm::{Collective, Group, threads};
use sogclr::cpu::Engine;
use sogclr::data::Modality;
use sogclr::encoder::{Compute, HeadConfig, Model, ModelConfig, Precision, ResNetConfig, ResNetName, Stem, TextConfig};
use sogclr::loss::{Loss, LossError, LossInput, LossOutput, SetName};
use sogclr::math::{Isa, Matrix, Purpose, SampleRng};
use sogclr::method::{BuildContext, Method, MethodConfig, Setting};
use sogclr::optim::{Optimizer, OptimizerConfig, Sgd};
use sogclr::params::export;
use sogclr::train::{Learner, StepPlan};
use std::collections::BTreeMap;

const BATCH: usize = 16;
const SAMPLES: usize = 48;
const SIZE: usize = 12;

/// What is trained, and how.
#[derive(Clone)]
struct Case {
    method: &'static str,
    modality: Modality,
    micro_batch: Option<usize>,
    compute: Compute,
    sgd: Sgd,
    lr: f64,
    steps: usize,
}

/// Where training ended.
struct End {
    losses: Vec<f64>,
    /// Parameters, running statistics, the method's own tensors and the state, by name.
    values: BTreeMap<String, Vec<f32>>,
}

impl End {
    /// Every bit; a sample that was not seen has NaN for state.
    fn bits(&self) -> (Vec<u64>, Vec<(&String, Vec<u32>)>) {
        let values = self.values.iter().map(|(name, values)| (name, values.iter().map(|v| v.to_bits()).collect()));
        (self.losses.iter().map(|loss| loss.to_bits()).collect(), values.collect())
    }
}

impl Case {
    fn new(method: &'static str, modality: Modality) -> Self {
        let sgd = Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
        Self { method, modality, micro_batch: None, compute: Compute::cpu(), sgd, lr: 0.0, steps: 1 }
    }

    fn model(&self) -> ModelConfig {
        let encoder = ResNetConfig { name: ResNetName::Resnet8, width: 0.5, stem: Stem::Cifar };
        let head = HeadConfig { layers: 2, hidden: 24, output: 16, norm: true, norm_output: true };
        let text = TextConfig { width: 16, layers: 1, heads: 2, context: 8, vocabulary: 64, output: Some(16) };
        let (head, text) = match self.modality {
            Modality::Images => (Some(head), None),
            Modality::Pairs => (None, Some(text)),
        };
        ModelConfig { encoder: encoder.into(), head, text, image_size: SIZE, channels: 3 }
    }

    fn config(&self) -> MethodConfig {
        let setting = Setting {
            is_small: true,
            is_grey: false,
            modality: self.modality,
            samples: SAMPLES,
            batch: BATCH,
            epochs: 2,
        };
        let mut config = MethodConfig::named(self.method, &setting).unwrap();
        match &mut config {
            MethodConfig::Moco(moco) => (moco.queue, moco.norm_groups) = (32, 2),
            MethodConfig::Infomin(infomin) => (infomin.queue, infomin.norm_groups) = (32, 2),
            MethodConfig::Nnclr(nnclr) => nnclr.queue = 32,
            _ => {}
        }
        config
    }

    fn method(&self, compute: &Compute) -> Box<dyn Method> {
        self.config().spec().build(&BuildContext { model: &self.model(), seed: 3, compute: compute.clone() })
    }

    /// The share of batch `step` that a rank holds; a pixel is a function of (sample, view).
    fn batch(&self, step: usize, share: Share) -> Batch {
        let order = SampleRng::new(7, Purpose::Shuffle, (step / 3) as u64, 0, 0).permutation(SAMPLES);
        let ids = order[step % 3 * BATCH..][..BATCH].to_vec();
        let ours: Vec<usize> = share.places().into_iter().map(|place| ids[place]).collect();
        let crops = |count: usize, size: usize, kind: usize| {
            let area = 3 * size * size;
            let mut pixels = Vec::with_capacity(count * ours.len() * area);
            for view in 0..count {
                for &id in &ours {
                    let image = noise(id, kind, area);
                    let extra = noise(1000 + 50 * step + id, kind + view, area);
                    pixels.extend(image.iter().zip(extra).map(|(image, extra)| image + 0.3 * extra));
                }
            }
            Crops { count, size, channels: 3, layout: self.compute.layout(), pixels }
        };
        let is_pairs = self.modality == Modality::Pairs;
        let texts = is_pairs.then(|| Texts {
            context: 8,
            ids: ours.iter().flat_map(|id| (0..8).map(move |place| ((id * 13 + place * 7) % 64) as u32)).collect(),
            ends: ours.iter().map(|id| 3 + id % 5).collect(),
        });
        Batch {
            step,
            epoch: step / 3,
            labels: Some(ids.iter().map(|id| (id % 5) as u32).collect()),
            ids,
            share,
            crops: vec![crops(if is_pairs { 1 } else { 2 }, SIZE, 0)],
            tiles: (self.method == "infomin").then(|| crops(9, 6, 20)),
            texts,
        }
    }

    /// Trains as one of the ranks.
    fn train(&self, group: &Group, method: impl Fn(&Self, &Compute, &Group) -> Box<dyn Method>) -> End {
        let compute = self.compute.autodiff();
        let method = method(self, &compute, group);
        let share = Share::of(group, BATCH, method.norm_groups(), self.micro_batch).unwrap();
        let optimizer = Optimizer::new(OptimizerConfig::Sgd(self.sgd));
        let mut learner = Learner::new(Model::new(&self.model(), 3, &compute), optimizer, method, SAMPLES, &compute);
        let chunk = self.micro_batch.unwrap_or(BATCH);
        let plan = StepPlan { chunk, lr: self.lr, peak_lr: self.lr, total_steps: 100 };
        let step = |step| learner.step(&self.batch(step, share), &plan, group).unwrap().loss;
        let losses = (0..self.steps).map(step).collect();
        let mut values: BTreeMap<String, Vec<f32>> = BTreeMap::new();
        for tensors in [export(learner.model()), learner.method.export()] {
            values.extend(tensors.into_iter().map(|(name, tensor)| (name, tensor.values)));
        }
        values.extend(learner.state.columns().map(|(name, column)| (format!("state {name}"), column.to_vec())));
        End { losses, values }
    }

    /// Trains with `ranks` ranks, which all end with the same bytes.
    fn end(&self, ranks: usize) -> End {
        self.end_with(threads(ranks), |case, compute, _| case.method(compute))
    }

    fn end_with(&self, groups: Vec<Group>, method: impl Fn(&Self, &Compute, &Group) -> Box<dyn Method> + Sync) -> End {
        let mut ends = self.ends_with(groups, method);
        let first = ends.remove(0);
        assert!(ends.iter().all(|end| end.bits() == first.bits()), "{}: the ranks' replicas differ", self.method);
        first
    }

    /// Where each rank ended.
    fn ends_with(
        &self,
        groups: Vec<Group>,
        method: impl Fn(&Self, &Compute, &Group) -> Box<dyn Method> + Sync,
    ) -> Vec<End> {
        std::thread::scope(|scope| {
            // A rank waits for the others, so each has threads of its own, as processes have.
            let alone = |group| {
                let method = &method;
                scope.spawn(move || {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
                    pool.install(|| self.train(&group, method))
                })
            };
            let ranks: Vec<_> = groups.into_iter().map(alone).collect();
            ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
        })
    }

    /// Slow enough that a hundred steps seldom cross a kink of ReLU; VICReg and Barlow Twins have steep losses.
    fn gentle_rate(&self) -> f64 {
        if matches!(self.method, "vicreg" | "barlow-twins") { 1e-6 } else { 1e-4 }
    }

    /// One plain step so wide that the weights hold the gradient: w ← w − lr·∂L/∂w.
    fn one_step(self) -> Self {
        Self { lr: 1e3, steps: 1, ..self }
    }
}

fn noise(id: usize, kind: usize, len: usize) -> Vec<f32> {
    let mut rng = SampleRng::new(11, Purpose::Augment, id as u64, kind as u64, 0);
    (0..len).map(|_| rng.uniform(-1.0, 1.0) as f32).collect()
}

/// ‖a − b‖ and ‖b‖ over the values whose name `counts`.
fn apart(a: &End, b: &End, counts: impl Fn(&str) -> bool) -> (f64, f64) {
    assert_eq!(a.values.keys().collect::<Vec<_>>(), b.values.keys().collect::<Vec<_>>());
    let (mut apart, mut size) = (0.0, 0.0);
    for (name, ours) in a.values.iter().filter(|(name, _)| counts(name)) {
        for (ours, want) in ours.iter().zip(&b.values[name]) {
            if ours.is_nan() && want.is_nan() {
                continue; // the state of a sample that was not seen
            }
            let (ours, want) = (f64::from(*ours), f64::from(*want));
            apart += (ours - want).powi(2);
            size += want.powi(2);
        }
    }
    (apart.sqrt(), size.sqrt())
}

fn is_state(name: &str) -> bool {
    name.starts_with("state ")
}

/// Relative distances of losses, weights (or, after one plain step, gradients) and state from those of one process.
fn distances(ours: &End, one: &End) -> [f64; 3] {
    // SogCLR's surrogate passes zero: its size is that of the run's largest.
    let largest = one.losses.iter().map(|loss| loss.abs()).fold(0.0, f64::max);
    let losses = ours.losses.iter().zip(&one.losses).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f64::max);
    let of = |(apart, size): (f64, f64)| if size == 0.0 { apart } else { apart / size };
    [losses, of(apart(ours, one, |name| !is_state(name))), of(apart(ours, one, is_state))]
}

/// The largest of them.
fn distance(ours: &End, one: &End) -> f64 {
    distances(ours, one).into_iter().fold(0.0, f64::max)
}

/// A row of the table in docs/distributed.md.
fn cells(distances: [f64; 3]) -> String {
    distances.map(|distance| if distance == 0.0 { "0".to_owned() } else { format!("{distance:.0e}") }).join(" | ")
}

fn cases() -> Vec<Case> {
    let of = |modality| {
        let setting = Setting { is_small: true, is_grey: false, modality, samples: SAMPLES, batch: BATCH, epochs: 2 };
        let all = MethodConfig::NAMES
            .iter()
            .filter(move |name| MethodConfig::named(name, &setting).is_ok_and(|method| method.name() == **name));
        all.map(move |name| Case::new(name, modality))
    };
    of(Modality::Images).chain(of(Modality::Pairs)).collect()
}

#[test]
fn one_step_of_every_method_is_that_of_one_process() {
    let cases = cases();
    assert_eq!(cases.len(), MethodConfig::NAMES.len());
    for case in cases {
        for micro_batch in [None, Some(8)] {
            let case = Case { micro_batch, ..case.clone() }.one_step();
            let one = case.end(1);
            for ranks in [2, 4] {
                let end = case.end(ranks);
                let (distance, micro) = (distance(&end, &one), micro_batch.map_or("", |_| ", micro-batches"));
                println!("| {}{micro} | 1 | {ranks} | {} |", case.method, cells(distances(&end, &one)));
                assert!(distance < 1e-5, "{} {micro_batch:?} K = {ranks}: {distance:e}", case.method);
            }
        }
    }
}

/// Statistics that differ in the last place of f32 move some activations to the neighbouring bf16: two ranks are as far from one
/// as one is from itself with the sums of its kernels in another order.
#[test]
fn one_step_with_bf16_activations_is_that_of_one_process_up_to_their_rounding() {
    let of = |engine| Compute::cpu_with(engine).with_precision(Precision::Bf16);
    for method in ["sogclr", "byol", "moco"] {
        let case = Case { compute: of(Engine::default()), ..Case::new(method, Modality::Images) }.one_step();
        let one = case.end(1);
        let engine = Engine { isa: Isa::PORTABLE, ..Engine::default() };
        let reordered = distance(&Case { compute: of(engine), ..case.clone() }.end(1), &one);
        let f32 = distance(&Case { compute: Compute::cpu(), ..case.clone() }.end(1), &one);
        for ranks in [1, 2, 4] {
            let distance = distance(&case.end(ranks), &one);
            println!("{method} K = {ranks}: {distance:.1e}, another order of sums {reordered:.1e}, f32 {f32:.1e}");
            assert!(distance < (3.0 * reordered).max(1e-3), "{method} K = {ranks}: {distance:e}, {reordered:e}");
            assert!(distance < 0.5 * f32, "{method} K = {ranks}: {distance:e}, f32 is {f32:e} away");
        }
    }
}

/// As far apart as runs of one process whose kernels round their sums in another order: without Winograd's algorithm, or by
/// portable instructions. Where such a run meets a kink of ReLU on the other side it goes its own way, up to 3e-2 at larger
/// rates, so a thousandth is allowed in any case.
#[test]
fn a_hundred_steps_end_as_near_as_rounding_lets_them() {
    let orders = [Engine { isa: Isa::PORTABLE, ..Engine::default() }, Engine { winograd: false, ..Engine::default() }];
    for case in cases() {
        let sgd = Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-4 };
        let case = Case { sgd, lr: case.gentle_rate(), steps: 100, ..case };
        let one = case.end(1);
        let reordered = |engine| Case { compute: Compute::cpu_with(engine), ..case.clone() }.end(1);
        let rounding = orders.map(|engine| distance(&reordered(engine), &one)).into_iter().fold(0.0, f64::max);
        for ranks in [2, 4] {
            let end = case.end(ranks);
            let distance = distance(&end, &one);
            let row = cells(distances(&end, &one));
            println!("| {} | 100 | {ranks} | {row} | {rounding:.0e} |", case.method);
            assert!(
                distance < (10.0 * rounding).max(1e-3),
                "{} K = {ranks}: {distance:e}, rounding {rounding:e}",
                case.method
            );
        }
    }
}

#[test]
fn plain_operations_of_any_device_share_batch_norm_too() {
    for method in ["sogclr", "moco"] {
        let case = Case { compute: Compute::plain(Device::flex()), ..Case::new(method, Modality::Images) }.one_step();
        let one = case.end(1);
        for ranks in [2, 4] {
            let distance = distance(&case.end(ranks), &one);
            assert!(distance < 1e-5, "{method} K = {ranks}: {distance:e}");
        }
    }
}

/// A group that leaves batch norm's statistics to each rank.
struct LocalNorm(Group);

impl Collective for LocalNorm {
    fn rank(&self) -> usize {
        self.0.rank()
    }
    fn size(&self) -> usize {
        self.0.size()
    }
    fn sum(&self, values: &mut [f32]) {
        Collective::sum(&self.0, values);
    }
    fn sum_apart(&self, values: &mut [f32]) {
        Collective::sum_apart(&self.0, values);
    }
    fn sum_f64(&self, values: &mut [f64]) {
        values.iter_mut().for_each(|value| *value *= self.size() as f64);
    }
    fn gather(&self, values: Vec<f32>) -> Vec<f32> {
        Collective::gather(&self.0, values)
    }
    fn gather_bytes(&self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        Group::gather_bytes(&self.0, bytes)
    }
}

#[test]
fn batch_norm_left_to_each_rank_is_noticed() {
    let case = Case::new("sogclr", Modality::Images).one_step();
    let (one, local) = (case.end(1), |group| Group::new(LocalNorm(group)));
    let groups = threads(2).into_iter().map(local).collect();
    let method = |case: &Case, compute: &Compute, _: &Group| case.method(compute);
    // Running statistics differ between the ranks then: each is compared with one process alone.
    let apart = case.ends_with(groups, method).iter().map(|end| distance(end, &one)).fold(f64::INFINITY, f64::min);
    assert!(apart > 1e-2, "{apart:e}");
}

/// ln Σ_{j≠i} exp(zᵢ·z'ⱼ/τ) − zᵢ·z'ᵢ/τ over the anchors, by loops. A rank that takes what it gathered for constants keeps
/// only the terms of its own anchors.
struct Loops {
    anchors_of_this_rank_only: bool,
}

impl Loss for Loops {
    fn forward(&self, input: &LossInput) -> Result<LossOutput, LossError> {
        const TAU: f64 = 0.5;
        let (a, b) = (input.checked_unit(SetName::View(0))?, input.checked_unit(SetName::View(1))?);
        let (a, b) = (a.matrix().mapv(f64::from), b.matrix().mapv(f64::from));
        let (count, dim) = a.dim();
        let (mut loss, mut da, mut db) =
            (0.0, ndarray::Array2::<f64>::zeros((count, dim)), ndarray::Array2::zeros((count, dim)));
        for i in 0..count {
            let weights: Vec<f64> =
                (0..count).map(|j| if i == j { 0.0 } else { (a.row(i).dot(&b.row(j)) / TAU).exp() }).collect();
            let sum: f64 = weights.iter().sum();
            loss += (sum.ln() - a.row(i).dot(&b.row(i)) / TAU) / count as f64;
            if self.anchors_of_this_rank_only && !input.ours.contains(&i) {
                continue;
            }
            for (j, weight) in weights.iter().enumerate() {
                let weight = (weight / sum - f64::from(u8::from(i == j))) / TAU / count as f64;
                da.row_mut(i).scaled_add(weight, &b.row(j));
                db.row_mut(j).scaled_add(weight, &a.row(i));
            }
        }
        let ours =
            |d: ndarray::Array2<f64>| -> Matrix { d.slice(ndarray::s![input.ours.clone(), ..]).mapv(|v| v as f32) };
        LossOutput::contrasted(loss, loss, vec![(SetName::View(0), ours(da)), (SetName::View(1), ours(db))], input)
    }
}

struct LoopsMethod(Loops);

impl Method for LoopsMethod {
    fn loss(&self) -> &dyn Loss {
        &self.0
    }
}

#[test]
fn a_gradient_without_the_other_ranks_anchors_is_noticed() {
    let case = Case::new("dcl", Modality::Images).one_step();
    let end = |ranks, anchors_of_this_rank_only| {
        case.end_with(threads(ranks), |_, _, _| Box::new(LoopsMethod(Loops { anchors_of_this_rank_only })))
    };
    let one = end(1, false);
    assert!(distance(&end(2, false), &one) < 1e-5);
    let apart = distance(&end(2, true), &one);
    assert!(apart > 1e-2, "{apart:e}");
}
