//! A network as a list of ONNX operations (opset 17), with the layers that encoders are made of.

use super::proto::{Attribute, Entry, FLOAT, GraphProto, INT64, Model, Node, OperatorSet, TensorProto, ValueInfo};
use crate::params::NamedTensors;
use prost::Message;
use std::collections::BTreeSet;

/// The name of a tensor in the graph.
pub(super) type Value = String;

/// A graph that grows, and the parameters that it is given. Initialisers keep the names of parameters.
pub(super) struct Graph<'a> {
    parameters: &'a NamedTensors,
    used: BTreeSet<String>,
    nodes: Vec<Node>,
    initialisers: Vec<TensorProto>,
}

impl<'a> Graph<'a> {
    pub fn new(parameters: &'a NamedTensors) -> Self {
        Self { parameters, used: BTreeSet::new(), nodes: Vec::new(), initialisers: Vec::new() }
    }

    /// Whether there is a parameter of that name.
    pub fn has(&self, name: &str) -> bool {
        self.parameters.contains_key(name)
    }

    /// The shape of a parameter.
    pub fn shape(&self, name: &str) -> &'a [usize] {
        &self.parameters.get(name).unwrap_or_else(|| panic!("no parameter {name}: the weights were checked")).shape
    }

    /// A parameter as a constant.
    pub fn parameter(&mut self, name: &str) -> Value {
        let shape = self.shape(name);
        if self.used.insert(name.to_owned()) {
            self.floats(name, shape, &self.parameters[name].values);
        }
        name.to_owned()
    }

    fn floats(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.initialiser(name, shape, FLOAT, raw_data);
    }

    fn initialiser(&mut self, name: &str, shape: &[usize], data_type: i32, raw_data: Vec<u8>) {
        let dims = shape.iter().map(|&length| length as i64).collect();
        self.initialisers.push(TensorProto { dims, data_type, name: name.into(), raw_data });
    }

    /// Numbers that are no parameters.
    pub fn constant(&mut self, shape: &[usize], values: &[f32]) -> Value {
        let name = format!("constant_{}", self.initialisers.len());
        self.floats(&name, shape, values);
        name
    }

    /// Whole numbers, such as a shape.
    pub fn integers(&mut self, values: &[i64]) -> Value {
        let name = format!("constant_{}", self.initialisers.len());
        let raw_data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.initialiser(&name, &[values.len()], INT64, raw_data);
        name
    }

    /// An operation with one result.
    pub fn node(&mut self, op_type: &str, input: &[&str], attribute: Vec<Attribute>) -> Value {
        let name = format!("{}_{}", op_type.to_lowercase(), self.nodes.len());
        let input = input.iter().map(|&value| value.to_owned()).collect();
        self.nodes.push(Node {
            input,
            output: vec![name.clone()],
            name: name.clone(),
            op_type: op_type.into(),
            attribute,
        });
        name
    }

    /// Convolution without bias, padding k/2.
    pub fn conv(&mut self, x: &str, layer: &str, stride: i64) -> Value {
        let weight = self.parameter(&format!("{layer}.weight"));
        let kernel = self.shape(&weight)[2] as i64;
        let attributes = vec![
            Attribute::ints("kernel_shape", &[kernel; 2]),
            Attribute::ints("pads", &[kernel / 2; 4]),
            Attribute::ints("strides", &[stride; 2]),
        ];
        self.node("Conv", &[x, &weight], attributes)
    }

    /// Batch norm by its running statistics.
    pub fn batch_norm(&mut self, x: &str, layer: &str) -> Value {
        let [weight, bias, mean, var] =
            ["weight", "bias", "running_mean", "running_var"].map(|name| self.parameter(&format!("{layer}.{name}")));
        self.node("BatchNormalization", &[x, &weight, &bias, &mean, &var], vec![Attribute::float("epsilon", 1e-5)])
    }

    pub fn relu(&mut self, x: &str) -> Value {
        self.node("Relu", &[x], Vec::new())
    }

    pub fn add(&mut self, a: &str, b: &str) -> Value {
        self.node("Add", &[a, b], Vec::new())
    }

    pub fn mul(&mut self, a: &str, b: &str) -> Value {
        self.node("Mul", &[a, b], Vec::new())
    }

    pub fn matmul(&mut self, a: &str, b: &str) -> Value {
        self.node("MatMul", &[a, b], Vec::new())
    }

    pub fn transpose(&mut self, x: &str, axes: &[i64]) -> Value {
        self.node("Transpose", &[x], vec![Attribute::ints("perm", axes)])
    }

    /// 0 keeps a length, −1 is what is left.
    pub fn reshape(&mut self, x: &str, shape: &[i64]) -> Value {
        let shape = self.integers(shape);
        self.node("Reshape", &[x, &shape], Vec::new())
    }

    pub fn concat(&mut self, parts: &[&str], axis: i64) -> Value {
        self.node("Concat", parts, vec![Attribute::int("axis", axis)])
    }

    pub fn mean(&mut self, x: &str, axis: i64, keep: bool) -> Value {
        let attributes = vec![Attribute::ints("axes", &[axis]), Attribute::int("keepdims", i64::from(keep))];
        self.node("ReduceMean", &[x], attributes)
    }

    /// What stands at `index` of an axis, which is gone then.
    pub fn at(&mut self, x: &str, axis: i64, index: i64) -> Value {
        let name = format!("constant_{}", self.initialisers.len());
        self.initialiser(&name, &[], INT64, index.to_le_bytes().to_vec());
        self.node("Gather", &[x, &name], vec![Attribute::int("axis", axis)])
    }

    /// x·Wᵀ, and + b where the layer has one.
    pub fn linear(&mut self, x: &str, weight: &str, bias: Option<&str>) -> Value {
        let weight = self.parameter(weight);
        let weight = self.transpose(&weight, &[1, 0]);
        let y = self.matmul(x, &weight);
        match bias {
            Some(bias) => {
                let bias = self.parameter(bias);
                self.add(&y, &bias)
            }
            None => y,
        }
    }

    /// A linear layer with a bias.
    pub fn layer(&mut self, x: &str, layer: &str) -> Value {
        self.linear(x, &format!("{layer}.weight"), Some(&format!("{layer}.bias")))
    }

    /// Over the last axis.
    pub fn layer_norm(&mut self, x: &str, layer: &str, epsilon: f64) -> Value {
        let [weight, bias] = ["weight", "bias"].map(|name| self.parameter(&format!("{layer}.{name}")));
        let attributes = vec![Attribute::int("axis", -1), Attribute::float("epsilon", epsilon)];
        self.node("LayerNormalization", &[x, &weight, &bias], attributes)
    }

    pub fn softmax(&mut self, x: &str) -> Value {
        self.node("Softmax", &[x], vec![Attribute::int("axis", -1)])
    }

    /// The file: the value `x` of `dimension` numbers is its output.
    pub fn finish(mut self, input: ValueInfo, x: &str, dimension: usize, metadata: Vec<(String, String)>) -> Vec<u8> {
        const OUTPUT: &str = "features";
        self.nodes.push(Node {
            input: vec![x.into()],
            output: vec![OUTPUT.into()],
            name: OUTPUT.into(),
            op_type: "Identity".into(),
            attribute: Vec::new(),
        });
        let graph = GraphProto {
            node: self.nodes,
            name: "encoder".into(),
            initializer: self.initialisers,
            input: vec![input],
            output: vec![ValueInfo::batch_of(OUTPUT, FLOAT, &[dimension])],
        };
        let model = Model {
            ir_version: 8,
            producer_name: "sogclr".into(),
            producer_version: env!("CARGO_PKG_VERSION").into(),
            graph: Some(graph),
            opset_import: vec![OperatorSet { domain: String::new(), version: 17 }],
            metadata_props: metadata.into_iter().map(|(key, value)| Entry { key, value }).collect(),
        };
        model.encode_to_vec()
    }
}
