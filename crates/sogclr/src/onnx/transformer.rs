//! timm's vision transformers, CLIP's, and its text encoder. Blocks, widths and patches follow from the parameters.

use super::graph::{Graph, Value};
use super::proto::Attribute;

/// timm's, and PyTorch's default, which CLIP has.
const VIT_EPSILON: f64 = 1e-6;
const CLIP_EPSILON: f64 = 1e-5;
/// Values of a head of timm's.
const VIT_HEAD: usize = 64;

/// timm's: images → features `[N, width]`.
pub(super) fn vit(graph: &mut Graph, x: &str) -> Value {
    let heads = graph.shape("encoder.cls_token")[2] / VIT_HEAD;
    let (weight, bias) = ("encoder.patch_embed.proj.weight", "encoder.patch_embed.proj.bias");
    let mut x = tokens(graph, x, (weight, Some(bias)), "encoder.cls_token", "encoder.pos_embed");
    for index in 0.. {
        let prefix = format!("encoder.blocks.{index}");
        let part = |name: &str| format!("{prefix}.{name}");
        if !graph.has(&part("norm1.weight")) {
            break;
        }
        let y = graph.layer_norm(&x, &part("norm1"), VIT_EPSILON);
        let y = graph.layer(&y, &part("attn.qkv"));
        let y = attend(graph, &y, (heads, VIT_HEAD), None);
        let y = graph.layer(&y, &part("attn.proj"));
        x = graph.add(&x, &y);
        let y = graph.layer_norm(&x, &part("norm2"), VIT_EPSILON);
        let y = graph.layer(&y, &part("mlp.fc1"));
        let y = gelu(graph, &y);
        let y = graph.layer(&y, &part("mlp.fc2"));
        x = graph.add(&x, &y);
    }
    if graph.has("encoder.norm.weight") {
        let class = graph.at(&x, 1, 0);
        return graph.layer_norm(&class, "encoder.norm", VIT_EPSILON);
    }
    let (from, to, axis) = (graph.integers(&[1]), graph.integers(&[i64::MAX]), graph.integers(&[1]));
    let patches = graph.node("Slice", &[&x, &from, &to, &axis], Vec::new());
    let mean = graph.mean(&patches, 1, false);
    graph.layer_norm(&mean, "encoder.fc_norm", VIT_EPSILON)
}

/// CLIP's: images → embeddings `[N, dim]`.
pub(super) fn clip_vit(graph: &mut Graph, x: &str, head: usize) -> Value {
    let (class, positions) = ("encoder.class_embedding", "encoder.positional_embedding");
    let heads = graph.shape(class)[0] / head;
    let x = tokens(graph, x, ("encoder.conv1.weight", None), class, positions);
    let x = graph.layer_norm(&x, "encoder.ln_pre", CLIP_EPSILON);
    let x = clip_blocks(graph, x, "encoder.transformer", heads, None);
    let class = graph.at(&x, 1, 0);
    let class = graph.layer_norm(&class, "encoder.ln_post", CLIP_EPSILON);
    let projection = graph.parameter("encoder.proj");
    graph.matmul(&class, &projection)
}

/// CLIP's: ids of tokens `[N, context]`, zeros behind the end → embeddings `[N, dim]`.
pub(super) fn text(graph: &mut Graph, ids: &str, heads: usize) -> Value {
    let table = graph.parameter("text.token_embedding.weight");
    let x = graph.node("Gather", &[&table, ids], vec![Attribute::int("axis", 0)]);
    let positions = graph.parameter("text.positional_embedding");
    let x = graph.add(&x, &positions);
    let context = graph.shape("text.positional_embedding")[0];
    // 0 where a token may look, and at later tokens what leaves nothing of them.
    let entry = |k: usize| if k % context > k / context { f32::NEG_INFINITY } else { 0.0 };
    let mask: Vec<f32> = (0..context * context).map(entry).collect();
    let mask = graph.constant(&[context, context], &mask);
    let x = clip_blocks(graph, x, "text.transformer", heads, Some(&mask));
    let x = graph.layer_norm(&x, "text.ln_final", CLIP_EPSILON);
    // END has the highest id: the feature at its place, as a sum over places of which one counts.
    let highest = graph.node("ReduceMax", &[ids], vec![Attribute::ints("axes", &[1]), Attribute::int("keepdims", 1)]);
    let is_end = graph.node("Equal", &[ids, &highest], Vec::new());
    let counts = graph.node("Cast", &[&is_end], vec![Attribute::int("to", i64::from(super::proto::FLOAT))]);
    let counts = graph.reshape(&counts, &[0, 1, -1]);
    let x = graph.matmul(&counts, &x);
    let x = graph.at(&x, 1, 0);
    let projection = graph.parameter("text.text_projection");
    graph.matmul(&x, &projection)
}

/// Patches and a class token before them, each with its position. `[N, places + 1, width]`
fn tokens(graph: &mut Graph, x: &str, patches: (&str, Option<&str>), class: &str, positions: &str) -> Value {
    let (width, patch) = (graph.shape(patches.0)[0] as i64, graph.shape(patches.0)[2] as i64);
    let mut inputs = vec![x.to_owned(), graph.parameter(patches.0)];
    inputs.extend(patches.1.map(|bias| graph.parameter(bias)));
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let attributes = ["kernel_shape", "strides"].map(|name| Attribute::ints(name, &[patch; 2]));
    let x = graph.node("Conv", &inputs, attributes.into());
    let x = graph.reshape(&x, &[0, width, -1]);
    let x = graph.transpose(&x, &[0, 2, 1]);
    // As many class tokens as images.
    let shape = graph.node("Shape", &[&x], Vec::new());
    let first = graph.integers(&[0]);
    let batch = graph.node("Gather", &[&shape, &first], vec![Attribute::int("axis", 0)]);
    let rest = graph.integers(&[1, width]);
    let shape = graph.concat(&[&batch, &rest], 0);
    let class = graph.parameter(class);
    let class = graph.reshape(&class, &[1, 1, width]);
    let class = graph.node("Expand", &[&class, &shape], Vec::new());
    let x = graph.concat(&[&class, &x], 1);
    let positions = graph.parameter(positions);
    graph.add(&x, &positions)
}

/// Queries, keys and values side by side `[N, L, 3·width]` → what the heads mix `[N, L, width]`.
fn attend(graph: &mut Graph, all: &str, (heads, size): (usize, usize), mask: Option<&str>) -> Value {
    // [3, N, heads, L, size]
    let all = graph.reshape(all, &[0, 0, 3, heads as i64, -1]);
    let all = graph.transpose(&all, &[2, 0, 3, 1, 4]);
    let [q, k, v] = [0, 1, 2].map(|part| graph.at(&all, 0, part));
    let keys = graph.transpose(&k, &[0, 1, 3, 2]);
    let logits = graph.matmul(&q, &keys);
    let scale = graph.constant(&[], &[(size as f32).powf(-0.5)]);
    let mut logits = graph.mul(&logits, &scale);
    if let Some(mask) = mask {
        logits = graph.add(&logits, mask);
    }
    let shares = graph.softmax(&logits);
    let mixed = graph.matmul(&shares, &v);
    let mixed = graph.transpose(&mixed, &[0, 2, 1, 3]);
    graph.reshape(&mixed, &[0, 0, -1])
}

fn clip_blocks(graph: &mut Graph, mut x: Value, stack: &str, heads: usize, mask: Option<&str>) -> Value {
    for index in 0.. {
        let prefix = format!("{stack}.resblocks.{index}");
        let part = |name: &str| format!("{prefix}.{name}");
        if !graph.has(&part("ln_1.weight")) {
            break;
        }
        let width = graph.shape(&part("ln_1.weight"))[0];
        let y = graph.layer_norm(&x, &part("ln_1"), CLIP_EPSILON);
        let y = graph.linear(&y, &part("attn.in_proj_weight"), Some(&part("attn.in_proj_bias")));
        let y = attend(graph, &y, (heads, width / heads), mask);
        let y = graph.layer(&y, &part("attn.out_proj"));
        x = graph.add(&x, &y);
        let y = graph.layer_norm(&x, &part("ln_2"), CLIP_EPSILON);
        let y = graph.layer(&y, &part("mlp.c_fc"));
        let y = quick_gelu(graph, &y);
        let y = graph.layer(&y, &part("mlp.c_proj"));
        x = graph.add(&x, &y);
    }
    x
}

/// x·½(1 + erf(x/√2))
fn gelu(graph: &mut Graph, x: &str) -> Value {
    let root = graph.constant(&[], &[std::f32::consts::FRAC_1_SQRT_2]);
    let y = graph.mul(x, &root);
    let y = graph.node("Erf", &[&y], Vec::new());
    let one = graph.constant(&[], &[1.0]);
    let y = graph.add(&y, &one);
    let y = graph.mul(&y, x);
    let half = graph.constant(&[], &[0.5]);
    graph.mul(&y, &half)
}

/// x·σ(1.702x)
fn quick_gelu(graph: &mut Graph, x: &str) -> Value {
    let factor = graph.constant(&[], &[1.702]);
    let y = graph.mul(x, &factor);
    let y = graph.node("Sigmoid", &[&y], Vec::new());
    graph.mul(x, &y)
}
