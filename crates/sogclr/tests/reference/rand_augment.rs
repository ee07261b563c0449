//! RandAugment's operators against torchvision.

use crate::files::{Golden, json};
use sogclr::augment::{
    Planes, autocontrast, equalise, invert, posterise, rotate, sharpness, shear_x, shear_y, solarise, solarise_add,
    translate_x, translate_y,
};

#[test]
fn rand_augment_operators_equal_torchvision() {
    let (golden, cases) = (Golden::open("rand_augment.safetensors"), json("rand_augment.json"));
    let scratch = &mut Vec::new();
    for case in cases.as_array().unwrap() {
        let text = |key: &str| case[key].as_str().unwrap();
        let name = text("name");
        let input = golden.get(&format!("input.{}", text("input")));
        let &[channels, height, width] = input.shape() else { panic!("an image has three axes") };
        let mut image = Planes { channels, height, width, values: input.iter().map(|&v| v as f32).collect() };
        let value = || case["value"].as_f64().unwrap() as f32;
        let mut tolerance = 1e-5;
        let mut geometry = |operator: fn(&mut Planes, f32, &mut Vec<f32>)| {
            tolerance = 1e-4;
            operator(&mut image, value(), scratch);
        };
        match text("operation") {
            "rotate" => geometry(rotate),
            "shear_x" => geometry(shear_x),
            "shear_y" => geometry(shear_y),
            "translate_x" => geometry(translate_x),
            "translate_y" => geometry(translate_y),
            "autocontrast" => autocontrast(&mut image),
            "equalise" => equalise(&mut image),
            "invert" => invert(&mut image),
            "posterise" => posterise(&mut image, value() as u32),
            "solarise" => solarise(&mut image, value()),
            "solarise_add" => solarise_add(&mut image, value()),
            "sharpness" => sharpness(&mut image, value(), scratch),
            other => panic!("unknown operation {other}"),
        }
        for (ours, want) in image.values.iter().zip(&golden.get(name)) {
            assert!((f64::from(*ours) - want).abs() < tolerance, "{name}: {ours} vs {want}");
        }
    }
}
