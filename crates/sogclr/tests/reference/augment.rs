//! Every augmentation operator against Pillow and torchvision.

use crate::files::{Golden, json};
use sogclr::augment::{CropBox, Planes, Resizer, brightness, contrast, gaussian_blur, greyscale, hue, saturation};
use sogclr::data::{Image, Samples};
use sogclr::math::Layout;

fn source(golden: &Golden, name: &str) -> Image {
    let pixels = golden.get(name);
    let &[height, width, channels] = pixels.shape() else { panic!("an image has three axes") };
    Image::new(height, width, channels, pixels.iter().map(|&v| v as u8).collect::<Vec<u8>>())
}

fn bytes(image: &Image) -> &[u8] {
    match &image.data {
        Samples::U8(values) => values,
        other => panic!("8-bit images stay what they are, not {other:?}"),
    }
}

/// 8-bit filters round between passes; one grey level is the most that may differ.
fn assert_pixels(label: &str, ours: &Image, golden: &Golden, name: &str) {
    let want = source(golden, name);
    assert_eq!((ours.height, ours.width, ours.channels), (want.height, want.width, want.channels), "{label}");
    let worst = bytes(ours).iter().zip(bytes(&want)).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    assert!(worst <= 1, "{label}: off by {worst}");
}

#[test]
fn crops_equal_pillow() {
    let (golden, info) = (Golden::open("augment.safetensors"), json("augment.json"));
    let mut resizer = Resizer::default();
    for crop in info["crops"].as_array().unwrap() {
        let number = |key: &str| crop[key].as_u64().unwrap() as usize;
        let image = source(&golden, if crop["mode"] == "L" { "source_grey" } else { "source" });
        let region =
            CropBox { top: number("top"), left: number("left"), height: number("height"), width: number("width") };
        let ours = resizer.crop_resize(&image, region, number("out_height"), number("out_width"));
        let name = crop["name"].as_str().unwrap();
        assert_pixels(name, &ours, &golden, &format!("crop.{name}"));
    }
    let resized = resizer.shortest_side(&source(&golden, "source"), 20);
    assert_pixels("resize_20", &resized, &golden, "resize_20");
}

#[test]
fn centre_view_equals_torchvision_resize_and_centre_crop() {
    use sogclr::augment::{AugmentConfig, Augmenter, Preset};
    let golden = Golden::open("augment.safetensors");
    let mut config = AugmentConfig::preset(Preset::Cifar, 16);
    (config.mean, config.std) = (vec![0.0; 3], vec![1.0; 3]);
    // Up to 64 pixels there is no margin: shortest side 16, then the central 16×16.
    let image = source(&golden, "source");
    let mut out = vec![0.0; 3 * 16 * 16];
    Augmenter::new(&config, Layout::ChannelsFirst).centre_view(&image, 16, &mut out);
    let resized = Resizer::default().shortest_side(&image, 16);
    let left = (resized.width - 16) / 2;
    let want = CropBox { top: 0, left, height: 16, width: 16 }.cut(&resized);
    assert!((out[5] - f32::from(bytes(&want)[15]) / 255.0).abs() < 1e-6);

    // The golden case's offsets: 27 wide, round(5.5) = 6 on the even side.
    let resized = Resizer::default().shortest_side(&image, 20);
    let region = CropBox { top: 2, left: 6, height: 16, width: 16 };
    assert_pixels("centre", &region.cut(&resized), &golden, "resize_20_centre_16");
}

#[test]
fn colour_operators_equal_torchvision() {
    let (golden, info) = (Golden::open("augment.safetensors"), json("augment.json"));
    for case in info["colours"].as_array().unwrap() {
        let name = case["name"].as_str().unwrap();
        let input = golden.get(&format!("float.{}", case["input"].as_str().unwrap()));
        let &[channels, height, width] = input.shape() else { panic!("an image has three axes") };
        let mut image = Planes { channels, height, width, values: input.iter().map(|&v| v as f32).collect() };
        for step in case["steps"].as_array().unwrap() {
            let number = |key: &str| step[key].as_f64().unwrap() as f32;
            match step["op"].as_str().unwrap() {
                "brightness" => brightness(&mut image, number("factor")),
                "contrast" => contrast(&mut image, number("factor")),
                "saturation" => saturation(&mut image, number("factor")),
                "hue" => hue(&mut image, number("factor")),
                "greyscale" => greyscale(&mut image),
                "flip" => image.flip(),
                "blur" => gaussian_blur(&mut image, number("kernel") as usize, number("sigma"), &mut Vec::new()),
                other => panic!("unknown operation {other}"),
            }
        }
        for (ours, want) in image.values.iter().zip(&golden.get(&format!("colour.{name}"))) {
            assert!((f64::from(*ours) - want).abs() < 1e-5, "{name}: {ours} vs {want}");
        }
    }
}
