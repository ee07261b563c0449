//! The convex solve and the neighbour vote against PyTorch and NumPy.

use crate::files::json;
use ndarray::Array2;
use sogclr::eval::{Labelled, fit_logistic, knn_scores};
use sogclr::math::Matrix;

fn matrix(value: &serde_json::Value) -> Matrix {
    let rows: Vec<Vec<f32>> = serde_json::from_value(value.clone()).unwrap();
    Array2::from_shape_fn((rows.len(), rows[0].len()), |(i, j)| rows[i][j])
}

#[test]
fn logistic_regression_finds_the_minimum() {
    let golden = json("linear.json");
    let labels = serde_json::from_value(golden["labels"].clone()).unwrap();
    let data = Labelled { features: matrix(&golden["features"]), labels };
    let table = &golden["logistic"];
    let (classifier, minimum) = fit_logistic(&data, 3, table["lambda"].as_f64().unwrap(), 1e-9, 500);
    assert!((minimum - table["minimum"].as_f64().unwrap()).abs() < 1e-7, "{minimum}");
    for (ours, want) in classifier.weight.iter().zip(matrix(&table["weight"]).iter()) {
        assert!((ours - f64::from(*want)).abs() < 1e-4, "{ours} vs {want}");
    }
    let bias: Vec<f64> = serde_json::from_value(table["bias"].clone()).unwrap();
    let centre = classifier.bias.sum() / 3.0;
    for (ours, want) in classifier.bias.iter().zip(bias) {
        assert!((ours - centre - want).abs() < 1e-4, "{ours} vs {want}");
    }
}

#[test]
fn nearest_neighbour_votes_equal_the_reference() {
    let golden = json("linear.json");
    let labels = serde_json::from_value(golden["labels"].clone()).unwrap();
    let train = Labelled { features: matrix(&golden["features"]), labels };
    let table = &golden["knn"];
    let scores = knn_scores(&train, &matrix(&table["queries"]), 3, table["k"].as_u64().unwrap() as usize);
    let want: Vec<Vec<f64>> = serde_json::from_value(table["scores"].clone()).unwrap();
    for (ours, want) in scores.iter().flatten().zip(want.iter().flatten()) {
        assert!((ours - want).abs() <= 1e-4 * want.abs().max(1.0), "{ours} vs {want}");
    }
}
