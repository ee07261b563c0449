//! The features in two dimensions: a point for each image, its picture under the pointer.

use crate::math::Matrix;
use crate::report::looked::{Looked, Shown};
use crate::report::picture::{data_uri, tiles};
use askama::Template;
use image::RgbImage;
use ndarray::{Array1, Array2, Axis};
use serde_json::json;

const TILE: u32 = 32;
const COLUMNS: u32 = 40;
/// Rounds of the iteration: far more than two leading directions need that differ at all.
const ROUNDS: usize = 100;

#[derive(Template)]
#[template(path = "report/map.html")]
pub(super) struct Map {
    sprites: String,
    tile: u32,
    columns: u32,
    /// Whole percents of the variance.
    explained: f64,
    images: usize,
    samples: usize,
    /// Names and classes of classes.
    legend: Vec<(usize, String)>,
    /// x, y, class and name of each image, for the script.
    data: String,
}

/// `None` for fewer than three images.
pub(super) fn map(looked: &Looked) -> Option<Map> {
    if looked.images.len() < 3 {
        return None;
    }
    let (places, explained) = principal(looked.features.matrix());
    let largest = places.iter().fold(1e-9, |most: f64, value| most.max(value.abs()));
    let point = |(shown, place): (&Shown, ndarray::ArrayView1<f64>)| {
        let at = |axis: usize| (1000.0 * place[axis] / largest).round();
        json!([at(0), at(1), shown.class.map_or(-1, i64::from), shown.name])
    };
    let points: Vec<_> = looked.images.iter().zip(places.outer_iter()).map(point).collect();
    let pictures: Vec<RgbImage> = looked.images.iter().map(|shown| shown.picture.clone()).collect();
    Some(Map {
        sprites: data_uri(&tiles(&pictures, TILE, COLUMNS)),
        tile: TILE,
        columns: COLUMNS,
        explained: (100.0 * explained).round(),
        images: looked.images.len(),
        samples: looked.samples,
        legend: looked.classes.iter().cloned().enumerate().take(12).collect(),
        // Inside a script element, which `<` could end.
        data: json!(points).to_string().replace('<', "\\u003c"),
    })
}

/// The two directions in which rows differ most: coordinates `[rows, 2]`, and their share of the variance. Each axis points to
/// where the row farthest from 0 lies.
fn principal(rows: &Matrix) -> (Array2<f64>, f64) {
    let mut rows = rows.mapv(f64::from);
    let mean = rows.mean_axis(Axis(0)).expect("there are rows");
    rows -= &mean;
    let total: f64 = rows.iter().map(|value| value * value).sum();
    let mut directions: Vec<Array1<f64>> = Vec::new();
    let mut places = Array2::zeros((rows.nrows(), 2));
    for axis in 0..2 {
        // What the first direction leaves of the farthest row is a start that no symmetry can spoil.
        let start = (0..rows.nrows()).max_by(|&a, &b| length(&rows.row(a)).total_cmp(&length(&rows.row(b))));
        let mut direction = rows.row(start.unwrap_or_default()).to_owned();
        for _ in 0..ROUNDS {
            let next = rows.t().dot(&rows.dot(&direction));
            let size = length(&next.view());
            if size < 1e-30 {
                break;
            }
            direction = next / size;
        }
        direction /= length(&direction.view()).max(1e-30);
        let place = rows.dot(&direction);
        for (mut row, at) in rows.outer_iter_mut().zip(&place) {
            row.scaled_add(-at, &direction);
        }
        let far = place.iter().fold(0.0_f64, |far, at| if at.abs() > far.abs() { *at } else { far });
        places.column_mut(axis).assign(&(place * far.signum()));
        directions.push(direction);
    }
    let explained = places.iter().map(|value| value * value).sum::<f64>() / total.max(1e-30);
    (places, explained)
}

fn length(values: &ndarray::ArrayView1<f64>) -> f64 {
    values.dot(values).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::array;

    #[test]
    fn the_axes_are_those_of_the_largest_variance() {
        // Variances 50 along (1, 1), 2 along (1, −1) and 0.5 along z.
        let rows = array![
            [5.0, 5.0, 0.0],
            [-5.0, -5.0, 0.0],
            [1.0, -1.0, 0.0],
            [-1.0, 1.0, 0.0],
            [0.0, 0.0, 0.5],
            [0.0, 0.0, -0.5]
        ];
        let (places, explained) = principal(&rows);
        let root = 2.0_f64.sqrt();
        let want = [[5.0 * root, 0.0], [-5.0 * root, 0.0], [0.0, root], [0.0, -root], [0.0, 0.0], [0.0, 0.0]];
        for (row, want) in places.outer_iter().zip(want) {
            assert!(row.iter().zip(want).all(|(a, b)| (a.abs() - b.abs()).abs() < 1e-9), "{row} {want:?}");
        }
        assert!((explained - 104.0 / 104.5).abs() < 1e-9, "{explained}");
    }

    #[test]
    fn one_point_has_a_place() {
        let (places, explained) = principal(&Matrix::ones((4, 3)));
        assert!(places.iter().all(|value| value.abs() < 1e-9) && explained.abs() < 1e-6);
    }
}
