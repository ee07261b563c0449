//! The projection head of SimCLR's released program: [linear, batch norm, ReLU]·(k−1), linear, batch norm without
//! shift. Without batch norm it is MoCo v2's: linear layers with bias and ReLU between them.

use super::Compute;
use super::batch_norm::{BatchNorm, Pass};
use super::layers::Linear;
use crate::check::{Problem, require};
use burn::module::Module;
use burn::tensor::{Tensor, activation::relu};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The projection head, used in pre-training only: linear, batch norm and ReLU, repeated; the last layer is
/// linear and batch norm without shift.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeadConfig {
    /// Number of linear layers: 2, 3 or 4.
    pub layers: usize,
    /// Width of the hidden layers: by default that of the features, as in the released program (2048 for ResNet-50, 8192 for 4×);
    /// 128 is the paper's text.
    pub hidden: usize,
    /// Dimension of the embedding that the loss contrasts.
    pub output: usize,
    /// Batch norm in every layer; without it the linear layers have biases (MoCo v2).
    pub norm: bool,
    /// Batch norm after the last layer, where there is any; BYOL, Barlow Twins and VICReg have none there.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub norm_output: bool,
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants it so")]
fn is_yes(value: &bool) -> bool {
    *value
}

impl HeadConfig {
    /// Two layers, the hidden one as wide as the features.
    pub fn for_features(features: usize) -> Self {
        Self { layers: 2, hidden: features.max(128), output: 128, norm: true, norm_output: true }
    }

    /// Refuses impossible values.
    pub fn check(&self) -> Result<(), Problem> {
        let layers = self.layers;
        require((2..=4).contains(&layers), "head.layers", || format!("is {layers}; heads have 2, 3 or 4 layers"))?;
        for (key, size) in [("head.hidden", self.hidden), ("head.output", self.output)] {
            require((2..=65_536).contains(&size), key, || format!("is {size}; it must lie between 2 and 65536"))?;
        }
        Ok(())
    }
}

/// One linear layer and what normalises it.
#[derive(Module, Debug)]
pub struct HeadLayer {
    linear: Linear,
    bn: Option<BatchNorm>,
}

/// Maps features to the embedding that the loss contrasts.
#[derive(Module, Debug)]
pub struct Head {
    layers: Vec<HeadLayer>,
}

impl Head {
    /// Weights are zero until an initialisation or an import fills them.
    pub fn new(config: &HeadConfig, features: usize, compute: &Compute) -> Self {
        let layers = (0..config.layers)
            .map(|index| {
                let input = if index == 0 { features } else { config.hidden };
                let last = index + 1 == config.layers;
                let output = if last { config.output } else { config.hidden };
                let linear = Linear::new(input, output, compute);
                if last && config.norm && !config.norm_output {
                    return HeadLayer { linear, bn: None };
                }
                if !config.norm {
                    return HeadLayer { linear: linear.with_bias(), bn: None };
                }
                let bn = BatchNorm::new(output, compute);
                HeadLayer { linear, bn: Some(if last { bn.without_bias() } else { bn }) }
            })
            .collect();
        Self { layers }
    }

    /// features `[N, dim]` → embeddings `[N, output]`, not normalised
    pub fn forward(&self, mut x: Tensor<2>, pass: &mut Pass) -> Tensor<2> {
        for (index, layer) in self.layers.iter().enumerate() {
            let is_hidden = index + 1 < self.layers.len();
            x = layer.linear.forward(x);
            x = match &layer.bn {
                Some(bn) => bn.forward(x, None, is_hidden, pass),
                None if is_hidden => relu(x),
                None => x,
            };
        }
        x
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::{HostTensor, NamedTensors, export, import, to_host};

    fn config(norm: bool, norm_output: bool) -> HeadConfig {
        HeadConfig { layers: 2, hidden: 3, output: 2, norm, norm_output }
    }

    /// Names and shapes of the head's parameters.
    fn parameters(config: &HeadConfig) -> Vec<(String, Vec<usize>)> {
        let head = Head::new(config, 5, &Compute::cpu());
        export(&head).into_iter().map(|(name, tensor)| (name, tensor.shape)).collect()
    }

    fn expected(list: &[(&str, &[usize])]) -> Vec<(String, Vec<usize>)> {
        list.iter().map(|(name, shape)| ((*name).to_owned(), shape.to_vec())).collect()
    }

    const HIDDEN: [(&str, &[usize]); 5] = [
        ("layers.0.bn.bias", &[3]),
        ("layers.0.bn.running_mean", &[3]),
        ("layers.0.bn.running_var", &[3]),
        ("layers.0.bn.weight", &[3]),
        ("layers.0.linear.weight", &[3, 5]),
    ];

    #[test]
    fn simclrs_last_norm_has_no_shift() {
        let mut want = expected(&HIDDEN);
        want.extend(expected(&[
            ("layers.1.bn.running_mean", &[2]),
            ("layers.1.bn.running_var", &[2]),
            ("layers.1.bn.weight", &[2]),
            ("layers.1.linear.weight", &[2, 3]),
        ]));
        assert_eq!(parameters(&config(true, true)), want);
    }

    #[test]
    fn without_a_norm_of_the_output_the_last_layer_is_linear() {
        let mut want = expected(&HIDDEN);
        want.extend(expected(&[("layers.1.linear.weight", &[2, 3])]));
        assert_eq!(parameters(&config(true, false)), want);
    }

    #[test]
    fn mocos_layers_have_biases_in_place_of_norms() {
        let want = expected(&[
            ("layers.0.linear.bias", &[3]),
            ("layers.0.linear.weight", &[3, 5]),
            ("layers.1.linear.bias", &[2]),
            ("layers.1.linear.weight", &[2, 3]),
        ]);
        assert_eq!(parameters(&config(false, true)), want);
        assert_eq!(parameters(&config(false, false)), want, "there is no norm to leave out");
    }

    /// x = 2: relu(−1·2 + 1) = 0, relu(3·2 − 2) = 4; then −5·4 + 0.5 stays below 0.
    #[test]
    fn relu_stands_between_the_layers_and_not_after_the_last() {
        let config = HeadConfig { layers: 2, hidden: 2, output: 1, norm: false, norm_output: true };
        let tensor = |shape: &[usize], values: &[f32]| HostTensor { shape: shape.to_vec(), values: values.to_vec() };
        let weights = NamedTensors::from([
            ("layers.0.linear.weight".to_owned(), tensor(&[2, 1], &[-1.0, 3.0])),
            ("layers.0.linear.bias".to_owned(), tensor(&[2], &[1.0, -2.0])),
            ("layers.1.linear.weight".to_owned(), tensor(&[1, 2], &[7.0, -5.0])),
            ("layers.1.linear.bias".to_owned(), tensor(&[1], &[0.5])),
        ]);
        let compute = Compute::cpu();
        let head = import(Head::new(&config, 1, &compute), &weights).unwrap();
        let y = head.forward(Tensor::from_data([[2.0_f32]], compute.device()), &mut Pass::Eval);
        assert_eq!(to_host(y), [-19.5]);
    }

    #[test]
    fn the_hidden_layer_is_as_wide_as_the_features_from_128() {
        let hidden = [16, 128, 512, 2048, 8192].map(|features| HeadConfig::for_features(features).hidden);
        assert_eq!(hidden, [128, 128, 512, 2048, 8192]);
    }

    #[test]
    fn impossible_heads_are_refused_by_their_key() {
        let good = HeadConfig::for_features(512);
        let key = |config: HeadConfig| config.check().unwrap_err().key;
        assert_eq!(good.check(), Ok(()));
        assert_eq!(key(HeadConfig { layers: 1, ..good.clone() }), "head.layers");
        assert_eq!(key(HeadConfig { layers: 5, ..good.clone() }), "head.layers");
        assert_eq!(key(HeadConfig { hidden: 1, ..good.clone() }), "head.hidden");
        assert_eq!(key(HeadConfig { output: 65_537, ..good }), "head.output");
    }

    #[test]
    fn a_norm_of_the_output_is_written_only_where_it_is_left_out() {
        let old = "layers = 2\nhidden = 3\noutput = 2\nnorm = true\n";
        assert_eq!(toml::from_str(old), Ok(config(true, true)));
        assert_eq!(toml::to_string(&config(true, true)).unwrap(), old);
        assert_eq!(toml::to_string(&config(true, false)).unwrap(), format!("{old}norm_output = false\n"));
    }
}
