//! `sogclr report`, and the page that other verbs leave.

use crate::{failure, sogclr, train};

#[test]
fn training_leaves_a_page_and_several_runs_share_one() {
    let root = tempfile::tempdir().unwrap();
    let [first, second, both] = ["first", "second", "both.html"].map(|name| root.path().join(name));
    train(&first, &[]);
    train(&second, &["--no-report", "--method", "simclr"]);
    let page = std::fs::read_to_string(first.join("report.html")).unwrap();
    for part in [">Curves<", ">Map<", ">Nearest neighbours<", ">Most crowded<", "kNN ", "data:image/jpeg;base64,"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!second.join("report.html").exists());

    let report = |more: &[&str]| {
        let mut command = sogclr();
        command.arg("report").args([&first, &second]).args(more);
        command
    };
    let (code, error) = failure(&mut report(&[]));
    assert_eq!((code, error.contains("--out")), (2, true), "{error}");
    let out = ["--out", both.to_str().unwrap()];
    let output = report(&out).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("/first: ") && said.contains("/second: "), "{said}");
    let page = std::fs::read_to_string(&both).unwrap();
    assert!(page.contains("Side by side") && page.contains("simclr"));
    let (code, error) = failure(&mut report(&out));
    assert_eq!((code, error.contains("--force")), (2, true), "{error}");
    report(&out).arg("--force").assert().success();
}

#[test]
fn without_its_images_a_run_still_has_curves_and_the_reason() {
    let root = tempfile::tempdir().unwrap();
    let (data, run) = (root.path().join("data"), root.path().join("run"));
    std::fs::create_dir(&data).unwrap();
    for k in 0..8_u8 {
        image::RgbImage::from_pixel(16, 16, image::Rgb([30 * k, 9, 200])).save(data.join(format!("{k}.png"))).unwrap();
    }
    let small = ["pretrain", "--image-size", "8", "--encoder", "resnet8", "--batch", "4", "--epochs", "1"];
    sogclr().args(small).args(["--set", "encoder.width=0.25"]).arg(&data).arg("--out").arg(&run).assert().success();
    let page = || std::fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page().contains(">Nearest neighbours<") && !page().contains(">Classes<"), "there are no labels");
    std::fs::rename(&data, root.path().join("elsewhere")).unwrap();
    sogclr().arg("report").arg(&run).assert().success();
    assert!(page().contains("No pictures: ") && page().contains(">Curves<") && !page().contains(">Map<"));
    let (code, error) = failure(sogclr().arg("report").arg(root.path()));
    assert_eq!((code, error.contains("is not a run folder")), (2, true), "{error}");
}
