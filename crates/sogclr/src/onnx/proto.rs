//! The messages of ONNX (onnx.proto, IR version 8) that an encoder needs.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Model {
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    #[prost(string, tag = "2")]
    pub producer_name: String,
    #[prost(string, tag = "3")]
    pub producer_version: String,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSet>,
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OperatorSet {
    /// Empty: ONNX's own.
    #[prost(string, tag = "1")]
    pub domain: String,
    #[prost(int64, tag = "2")]
    pub version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<Node>,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(float, tag = "2")]
    pub f: f32,
    #[prost(int64, tag = "3")]
    pub i: i64,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    /// 1 float, 2 int, 7 ints
    #[prost(int32, tag = "20")]
    pub r#type: i32,
}

impl Attribute {
    pub fn float(name: &str, f: f64) -> Self {
        Self { name: name.into(), f: f as f32, r#type: 1, ..Default::default() }
    }

    pub fn int(name: &str, i: i64) -> Self {
        Self { name: name.into(), i, r#type: 2, ..Default::default() }
    }

    pub fn ints(name: &str, ints: &[i64]) -> Self {
        Self { name: name.into(), ints: ints.to_vec(), r#type: 7, ..Default::default() }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    #[prost(string, tag = "8")]
    pub name: String,
    #[prost(bytes = "vec", tag = "9")]
    pub raw_data: Vec<u8>,
}

/// `data_type` and `elem_type` of f32 and of i64.
pub(super) const FLOAT: i32 = 1;
pub(super) const INT64: i32 = 7;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ValueInfo {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<Type>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Type {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TensorType {
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Shape {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Dimension {
    #[prost(oneof = "Length", tags = "1, 2")]
    pub value: Option<Length>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
pub(super) enum Length {
    #[prost(int64, tag = "1")]
    Value(i64),
    /// A name for what may be any.
    #[prost(string, tag = "2")]
    Param(String),
}

impl ValueInfo {
    /// A tensor whose first axis is the batch.
    pub fn batch_of(name: &str, elem_type: i32, rest: &[usize]) -> Self {
        let batch = Length::Param("batch".into());
        let lengths = std::iter::once(batch).chain(rest.iter().map(|&length| Length::Value(length as i64)));
        let dim = lengths.map(|length| Dimension { value: Some(length) }).collect();
        let tensor = TensorType { elem_type, shape: Some(Shape { dim }) };
        Self { name: name.into(), r#type: Some(Type { tensor_type: Some(tensor) }) }
    }
}
