//! `sogclr loss`: any loss on given embeddings, for a cross-check against another program.

use crate::error::CliError;
use crate::output::say;
use clap::Args;
use sogclr::config::Overrides;
use sogclr::data::Modality;
use sogclr::loss::{EmbeddingSets, LossError, LossInput, Progress, SetName};
use sogclr::math::{Matrix, UnitRows};
use sogclr::method::{MethodConfig, Setting};
use sogclr::params::{HostTensor, NamedTensors};
use sogclr::state::SampleState;
use sogclr::storage::{load_ids, load_tensors, save_tensors};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Ids are an index into `log_u`; more than this is a mistake.
const MAX_SAMPLES: usize = 1 << 30;
/// The names of embedding sets in a file.
const SETS: &[(&str, SetName)] = &[
    ("z_a", SetName::View(0)),
    ("z_b", SetName::View(1)),
    ("k_a", SetName::Key(0)),
    ("k_b", SetName::Key(1)),
    ("p_a", SetName::Predictor(0)),
    ("p_b", SetName::Predictor(1)),
    ("z_jigsaw", SetName::Jigsaw),
    (TEXT, SetName::Text),
];
/// Its presence means image–text pairs.
const TEXT: &str = "z_text";

/// Evaluate a loss on embeddings from a file, to check it against another program.
///
/// IN holds `z_a` and `z_b` [B, d] (raw; they are normalised inside), and optionally `ids` [B] i64 and `log_u` [n]
/// (NaN: never seen), and `labels` [B] i64 for methods that use them. More than two views are `views_0`, `views_1`, …
/// instead. Methods with a momentum encoder take its keys `k_b` in place of `z_b`, and a `queue` [K, d]; infomin also
/// `z_jigsaw`; nnclr and simsiam the predictions `p_a` and `p_b`; byol these and `k_a`, `k_b`. OUT gets `loss`, `objective` where the method has one, the gradients with respect to the raw
/// embeddings (`grad_a`, `grad_b`, `grad_views_0`, `grad_p_a`, `grad_jigsaw`, …), and the new `log_u`; isogclr also reads
/// and writes `tau` and `tau_grad` [n]. Image–text pairs are `z_a` and `z_text`, with `log_u` and `log_u_text`; OUT then
/// also has the gradients of learned temperatures (`grad_log_scale`, `grad_bias`, `grad_tau`).
#[derive(Args)]
pub struct LossVerb {
    /// Safetensors file with the embeddings
    input: PathBuf,
    /// Any method that `sogclr pretrain --method` knows
    #[arg(long, value_name = "NAME", default_value = "sogclr")]
    method: String,
    /// τ, for methods that have one; 0.1 unless given
    #[arg(long, value_name = "TAU")]
    temperature: Option<f64>,
    /// γ, for methods with a moving average
    #[arg(long, value_name = "GAMMA")]
    gamma: Option<f64>,
    /// How many of the views are large crops
    #[arg(long, value_name = "L")]
    large: Option<usize>,
    /// Epoch, for schedules of γ
    #[arg(long, value_name = "E", default_value_t = 0)]
    epoch: usize,
    /// Set a key of the method, e.g. variant=algorithm1
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Safetensors file for the results
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

impl LossVerb {
    pub fn run(self) -> Result<(), CliError> {
        let (tensors, _) = load_tensors(&self.input)?;
        if self.out.canonicalize().is_ok_and(|out| self.input.canonicalize().is_ok_and(|input| input == out)) {
            return Err(CliError::Input("--out is the file of the embeddings: choose another".into()));
        }
        let loss = self
            .method_config(if tensors.contains_key(TEXT) { Modality::Pairs } else { Modality::Images })?
            .spec()
            .loss();
        let given = self.sets(&tensors)?;
        let batch = given[0].2.nrows();
        let ids = load_ids(&self.input, "ids")?.unwrap_or_else(|| (0..batch).collect());
        let wrong = |text: String| CliError::Input(format!("{}: {text}", self.input.display()));
        if ids.len() != batch {
            return Err(wrong(format!("ids has {} entries for {batch} rows", ids.len())));
        }
        let labels = load_ids(&self.input, "labels")?;
        if labels.as_ref().is_some_and(|labels| labels.len() != batch) {
            return Err(wrong(format!("labels does not have {batch} entries")));
        }
        let labels: Option<Vec<u32>> = labels.map(|all| all.into_iter().map(|label| label as u32).collect());
        let samples = ids.iter().max().map_or(0, |max| max.saturating_add(1));
        if samples > MAX_SAMPLES {
            return Err(wrong(format!("ids go up to {}; at most {MAX_SAMPLES} samples", samples - 1)));
        }
        let mut state = self.state(&tensors, loss.columns(), samples).map_err(wrong)?;
        let views = given.iter().filter(|(_, set, _)| matches!(set, SetName::View(_))).count();
        let large_views = self.large.unwrap_or(views);
        if !(2..=views).contains(&large_views) && self.large.is_some() {
            return Err(CliError::Input(format!("--large {large_views}: there are {views} views")));
        }
        let queue = tensors.get("queue").map(|tensor| matrix("queue", tensor)).transpose().map_err(wrong)?;
        let queue = queue.map(UnitRows::new);
        if let Some(row) = queue.as_ref().and_then(UnitRows::first_non_finite) {
            return Err(wrong(format!("row {row} of queue is not finite")));
        }
        let names: Vec<(SetName, String)> = given.iter().map(|(name, set, _)| (*set, name.clone())).collect();
        let sets = EmbeddingSets::new(given.into_iter().map(|(_, set, raw)| (set, raw)).collect());
        let input = LossInput {
            labels: labels.as_deref(),
            queue: queue.as_ref().map(|queue| queue.matrix().view()),
            large_views,
            at: Progress { epoch: self.epoch, ..Progress::default() },
            ..LossInput::new(&sets, &ids, &state)
        };
        let out = loss.forward(&input).map_err(|error| {
            let named = |set: SetName| SETS.iter().find(|(_, other)| *other == set);
            match error {
                LossError::Missing(set) if named(set).is_some_and(|(name, _)| !tensors.contains_key(*name)) => {
                    wrong(format!("tensor {} is missing", named(set).map_or("", |(name, _)| name)))
                }
                LossError::NoQueue => wrong("tensor queue is missing".into()),
                error => wrong(error.to_string()),
            }
        })?;

        let scalar = |value: f64| HostTensor { shape: vec![1], values: vec![value as f32] };
        let mut results = NamedTensors::new();
        results.insert("loss".into(), scalar(out.loss));
        results.extend(out.objective.map(|objective| ("objective".to_owned(), scalar(objective))));
        for (name, grad) in out.grads {
            let shape = grad.shape().to_vec();
            let values = grad.into_raw_vec_and_offset().0;
            let (_, input) = names.iter().find(|(set, _)| *set == name).expect("a gradient belongs to a set");
            let gradient = format!("grad_{}", input.strip_prefix("z_").unwrap_or(input));
            results.insert(gradient, HostTensor { shape, values });
        }
        for (name, grad) in out.parameter_grads {
            results.insert(format!("grad_{name}"), scalar(grad));
        }
        state.commit(out.update);
        for (name, column) in state.columns() {
            results.insert(name.to_owned(), HostTensor { shape: vec![column.len()], values: column.to_vec() });
        }
        save_tensors(&self.out, &results, ("format", "pt"))?;
        let objective = out.objective.map_or(String::new(), |objective| format!("  objective {objective:.6}"));
        say!("loss {:.6}{objective}  → {}", out.loss, self.out.display());
        Ok(())
    }

    /// The method with the given keys over its defaults.
    fn method_config(&self, modality: Modality) -> Result<MethodConfig, CliError> {
        let setting = Setting { is_small: false, is_grey: false, modality, samples: 0, batch: 0, epochs: 1 };
        let base = MethodConfig::named(&self.method, &setting)
            .map_err(|problem| CliError::Input(format!("--method {:?}: {problem}", self.method)))?;
        let mut overrides = Overrides::from(toml::Table::try_from(&base).expect("plain data"));
        let usual = base.spec().temperature().map(|_| 0.1);
        if let Some(temperature) = self.temperature.or(usual) {
            overrides.set(&format!("temperature={temperature}"))?;
        }
        if let Some(gamma) = self.gamma {
            overrides.set(&format!("gamma={{ kind = \"constant\", value = {gamma} }}"))?;
        }
        for assignment in &self.sets {
            overrides.set(assignment)?;
        }
        let config: MethodConfig = overrides.table().clone().try_into().map_err(|error: toml::de::Error| {
            CliError::Input(format!("--method {}: {}", self.method, error.to_string().trim().replace('\n', " ")))
        })?;
        config.spec().check().map_err(|problem| CliError::Input(problem.to_string()))?;
        Ok(config)
    }

    /// Per-sample state from the columns that the file holds; `samples` of them at least.
    fn state(&self, tensors: &NamedTensors, columns: &[&str], samples: usize) -> Result<SampleState, String> {
        let given = || columns.iter().filter_map(|&name| Some((name, &tensors.get(name)?.values)));
        let samples = given().map(|(_, values)| values.len()).max().unwrap_or(samples).max(samples);
        let mut all = BTreeMap::new();
        for &name in columns {
            all.insert(name.to_owned(), vec![f32::NAN; samples]);
        }
        for (name, values) in given() {
            if values.len() < samples {
                return Err(format!("{name} has {} entries for {samples} samples", values.len()));
            }
            if let Some(id) = values.iter().position(|v| v.is_infinite()) {
                return Err(format!("{name}[{id}] is infinite; NaN stands for a sample never seen"));
            }
            all.insert(name.to_owned(), values.clone());
        }
        Ok(SampleState::from_columns(samples, all))
    }

    /// The embedding sets with the names of their tensors, the first view first.
    fn sets(&self, tensors: &NamedTensors) -> Result<Vec<(String, SetName, Matrix)>, CliError> {
        let many = (0..).map(|k| (format!("views_{k}"), SetName::View(k)));
        let mut named: Vec<(String, SetName)> = many.take_while(|(name, _)| tensors.contains_key(name)).collect();
        if named.is_empty() {
            let found = SETS.iter().filter(|(name, _)| tensors.contains_key(*name));
            named.extend(found.map(|&(name, set)| (name.to_owned(), set)));
        }
        if named.is_empty() {
            return Err(CliError::Input(format!("{}: tensor z_a is missing", self.input.display())));
        }
        let read = |(name, set): (String, SetName)| {
            let tensor = tensors.get(&name).ok_or_else(|| format!("tensor {name} is missing"))?;
            let matrix = matrix(&name, tensor)?;
            Ok((name, set, matrix))
        };
        let sets: Result<Vec<_>, String> = named.into_iter().map(read).collect();
        sets.map_err(|problem| CliError::Input(format!("{}: {problem}", self.input.display())))
    }
}

fn matrix(name: &str, tensor: &HostTensor) -> Result<Matrix, String> {
    let (&[rows, dim], false) = (&tensor.shape[..], tensor.values.is_empty()) else {
        return Err(format!("tensor {name} has shape {:?}; expected [B, d], neither of them 0", tensor.shape));
    };
    Ok(Matrix::from_shape_vec((rows, dim), tensor.values.clone()).expect("shape and values agree"))
}
