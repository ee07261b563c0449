//! ResNets as in torchvision, and CLIP's with its attention pool. Blocks, widths and stem follow from the parameters.

use super::graph::{Graph, Value};
use super::proto::Attribute;

/// Stages by the names of their blocks; CIFAR's family has three.
const STAGES: [&str; 4] = ["layer1", "layer2", "layer3", "layer4"];

/// Images → features `[N, dim]`.
pub(super) fn resnet(graph: &mut Graph, x: &str) -> Value {
    let is_large = graph.shape("encoder.conv1.weight")[2] == 7;
    let x = conv_norm(graph, x, "encoder.conv1", "encoder.bn1", if is_large { 2 } else { 1 });
    let mut x = graph.relu(&x);
    if is_large {
        let pool = [("kernel_shape", vec![3; 2]), ("pads", vec![1; 4]), ("strides", vec![2; 2])];
        x = graph.node("MaxPool", &[&x], pool.map(|(name, values)| Attribute::ints(name, &values)).into());
    }
    x = stages(graph, x, block);
    let x = graph.node("GlobalAveragePool", &[&x], Vec::new());
    graph.node("Flatten", &[&x], vec![Attribute::int("axis", 1)])
}

/// All blocks; the first of each stage but the first halves the sides.
fn stages(graph: &mut Graph, mut x: Value, block: fn(&mut Graph, &str, &str, i64) -> Value) -> Value {
    for (stage, name) in STAGES.iter().enumerate() {
        for index in 0.. {
            let prefix = format!("encoder.{name}.{index}");
            if !graph.has(&format!("{prefix}.conv1.weight")) {
                break;
            }
            x = block(graph, &x, &prefix, if stage > 0 && index == 0 { 2 } else { 1 });
        }
    }
    x
}

fn conv_norm(graph: &mut Graph, x: &str, conv: &str, norm: &str, stride: i64) -> Value {
    let y = graph.conv(x, conv, stride);
    graph.batch_norm(&y, norm)
}

fn block(graph: &mut Graph, x: &str, prefix: &str, stride: i64) -> Value {
    let part = |name: &str| format!("{prefix}.{name}");
    let is_bottleneck = graph.has(&part("conv3.weight"));
    // The 3×3 convolution has the stride.
    let (first, second) = if is_bottleneck { (1, stride) } else { (stride, 1) };
    let y = conv_norm(graph, x, &part("conv1"), &part("bn1"), first);
    let y = graph.relu(&y);
    let mut y = conv_norm(graph, &y, &part("conv2"), &part("bn2"), second);
    if is_bottleneck {
        y = graph.relu(&y);
        y = conv_norm(graph, &y, &part("conv3"), &part("bn3"), 1);
    }
    let shortcut = match graph.has(&part("downsample.0.weight")) {
        true => conv_norm(graph, x, &part("downsample.0"), &part("downsample.1"), stride),
        false => x.to_owned(),
    };
    let y = graph.add(&y, &shortcut);
    graph.relu(&y)
}

/// CLIP's: three convolutions first, average pools in place of strides, an attention pool last. → embeddings `[N, dim]`
pub(super) fn clip_resnet(graph: &mut Graph, x: &str) -> Value {
    let mut x = x.to_owned();
    for (number, stride) in [(1, 2), (2, 1), (3, 1)] {
        x = conv_norm(graph, &x, &format!("encoder.conv{number}"), &format!("encoder.bn{number}"), stride);
        x = graph.relu(&x);
    }
    x = average_pool(graph, &x);
    x = stages(graph, x, clip_block);
    attention_pool(graph, &x)
}

fn average_pool(graph: &mut Graph, x: &str) -> Value {
    let attributes = ["kernel_shape", "strides"].map(|name| Attribute::ints(name, &[2, 2]));
    graph.node("AveragePool", &[x], attributes.into())
}

fn clip_block(graph: &mut Graph, x: &str, prefix: &str, stride: i64) -> Value {
    let part = |name: &str| format!("{prefix}.{name}");
    let mut y = x.to_owned();
    for number in [1, 2] {
        y = conv_norm(graph, &y, &part(&format!("conv{number}")), &part(&format!("bn{number}")), 1);
        y = graph.relu(&y);
    }
    let mut shortcut = x.to_owned();
    if stride > 1 {
        y = average_pool(graph, &y);
        shortcut = average_pool(graph, &shortcut);
    }
    y = conv_norm(graph, &y, &part("conv3"), &part("bn3"), 1);
    if graph.has(&part("downsample.0.weight")) {
        shortcut = conv_norm(graph, &shortcut, &part("downsample.0"), &part("downsample.1"), 1);
    }
    let y = graph.add(&y, &shortcut);
    graph.relu(&y)
}

/// Attention of the mean over all places to it and to the places.
fn attention_pool(graph: &mut Graph, x: &str) -> Value {
    let pool = |name: &str| format!("encoder.attnpool.{name}");
    let width = graph.shape(&pool("positional_embedding"))[1];
    // Heads have 64 values; a narrow network has one.
    let heads = (width / 64).max(1);
    let size = width / heads;
    let places = graph.reshape(x, &[0, 0, -1]);
    let places = graph.transpose(&places, &[0, 2, 1]);
    let mean = graph.mean(&places, 1, true);
    let x = graph.concat(&[&mean, &places], 1);
    let positions = graph.parameter(&pool("positional_embedding"));
    let x = graph.add(&x, &positions);
    // [N, heads, places, size]; the query is the mean's
    let mut per_head = |name: &str| {
        let y = graph.layer(&x, &pool(name));
        let y = graph.reshape(&y, &[0, 0, heads as i64, size as i64]);
        graph.transpose(&y, &[0, 2, 1, 3])
    };
    let (q, k, v) = (per_head("q_proj"), per_head("k_proj"), per_head("v_proj"));
    let q = graph.at(&q, 2, 0);
    let q = graph.reshape(&q, &[0, 0, 1, size as i64]);
    let keys = graph.transpose(&k, &[0, 1, 3, 2]);
    let logits = graph.matmul(&q, &keys);
    let scale = graph.constant(&[], &[(size as f32).powf(-0.5)]);
    let logits = graph.mul(&logits, &scale);
    let shares = graph.softmax(&logits);
    let mixed = graph.matmul(&shares, &v);
    let mixed = graph.reshape(&mixed, &[0, width as i64]);
    graph.layer(&mixed, &pool("c_proj"))
}
