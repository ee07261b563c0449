//! Data in every form: a run does not depend on which.

use crate::{TINY, failure, sogclr};
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// 48 pictures in two class folders, with a split for testing.
fn photos(root: &Path) {
    for id in 0..56_u8 {
        let part = if id < 48 { "train" } else { "val" };
        let path = root.join(format!("{part}/{}/{id:02}.png", ["cat", "dog"][usize::from(id % 2)]));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let pixel = |x: u32, y: u32| image::Rgb([(x * 20) as u8, (y * u32::from(id)) as u8, id * 4]);
        image::RgbImage::from_fn(12, 10 + u32::from(id % 3), pixel).save(path).unwrap();
    }
}

fn zip_of(root: &Path, out: &Path) {
    let mut zip = zip::ZipWriter::new(File::create(out).unwrap());
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(root).unwrap().to_str().unwrap();
            zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
            zip.write_all(&std::fs::read(&path).unwrap()).unwrap();
        }
    }
    zip.finish().unwrap();
}

/// The bytes of the encoder that a tiny run on `data` ends with, and what is written of its data.
fn trained(data: &Path, out: &Path) -> (Vec<u8>, String) {
    let output = sogclr().args(TINY).arg(data).arg("--out").arg(out).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{text}");
    let line = text.lines().find(|line| line.starts_with("data: ")).unwrap();
    (std::fs::read(out.join("encoder.safetensors")).unwrap(), line.to_owned())
}

#[test]
fn a_folder_its_archive_and_its_pack_train_alike() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    photos(&at("photos"));
    zip_of(&at("photos"), &at("photos.zip"));
    sogclr().arg("pack").arg(at("photos.zip")).arg(at("photos.pack")).assert().success();
    let (wanted, line) = trained(&at("photos"), &at("runs/folder"));
    let has_all = |line: &str| {
        line.contains("48 training images") && line.contains("8 test images") && line.contains("2 classes")
    };
    assert!(has_all(&line), "{line}");
    for form in ["photos.zip", "photos.pack"] {
        let run = at(&format!("runs/{form}"));
        let (encoder, line) = trained(&at(form), &run);
        assert!(encoder == wanted && has_all(&line), "{form}: {line}");
        let out = at(&format!("{form}.safetensors"));
        sogclr().arg("embed").arg(&run).arg(at(form)).arg("--out").arg(&out).assert().success();
        let rows = std::fs::read_to_string(at(&format!("{form}.safetensors.tsv"))).unwrap();
        assert_eq!(rows.lines().count(), 56, "both splits");
    }
}

/// 48 arrays of 5 channels and 16 bits, as NumPy writes them.
fn spectra(root: &Path) {
    std::fs::create_dir_all(root).unwrap();
    for id in 0..48_u16 {
        let mut header = "{'descr': '<u2', 'fortran_order': False, 'shape': (5, 12, 10), }".to_owned();
        header += &" ".repeat(128 - 11 - header.len());
        header.push('\n');
        let mut bytes =
            [b"\x93NUMPY\x01\0".as_slice(), &(header.len() as u16).to_le_bytes(), header.as_bytes()].concat();
        bytes.extend((0..600_u16).flat_map(|at| (at * (id % 7 + 1) + at / 120 * 9000).to_le_bytes()));
        std::fs::write(root.join(format!("{id:02}.npy")), bytes).unwrap();
    }
}

#[test]
fn images_of_an_instrument_train_and_embed_at_their_depth() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    spectra(&at("spectra"));
    sogclr().arg("pack").arg(at("spectra")).arg(at("spectra.pack")).assert().success();
    let (wanted, _) = trained(&at("spectra"), &at("run"));
    assert!(trained(&at("spectra.pack"), &at("packed")).0 == wanted);
    let read = |name: &str| std::fs::read_to_string(at(name)).unwrap();
    let config = read("run/config.toml");
    let mean = config.lines().find(|line| line.starts_with("mean = ")).unwrap();
    assert!(config.contains("pixels = \"stored\"") && mean.split(',').count() == 5, "{config}");
    let script = read("run/load.py");
    assert!(script.contains("CHANNELS, STEM, SMALL_STEM = 5") && script.contains("numpy.load"), "{script}");
    let embed = |data: &Path, name: &str| {
        sogclr().arg("embed").arg(at("run")).arg(data).arg("--out").arg(at(name)).assert().success();
        std::fs::read(at(name)).unwrap()
    };
    assert!(embed(&at("spectra"), "a.safetensors") == embed(&at("spectra.pack"), "b.safetensors"));
    // One image of other channels is named before anything is written.
    std::fs::write(at("spectra/99.npy"), std::fs::read(at("spectra/00.npy")).unwrap().repeat(2)).unwrap();
    let command = &mut sogclr();
    let (code, message) = failure(command.args(TINY).arg(at("spectra")).arg("--out").arg(at("no")));
    assert!(code == 2 && message.contains("99.npy") && message.contains("1200 bytes, and"), "{code} {message}");
    assert!(!at("no").exists());
}

#[test]
fn what_cannot_be_packed_is_said_before_the_work() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name).display().to_string();
    photos(&root.path().join("photos"));
    std::fs::write(at("taken"), b"mine").unwrap();
    std::fs::write(at("cut.pack"), b"sogclrPK and no more").unwrap();
    for (more, words) in [
        (vec![at("photos"), at("taken")], "taken exists already"),
        (vec![at("photos"), at("no/such/x.pack")], "is no folder"),
        (vec![at("photos"), at("x.pack"), "--size".into(), "0".into()], "--size is too small"),
        (vec![at("nothing"), at("x.pack")], "does not exist"),
        (vec![at("cut.pack"), at("x.pack")], "cut.pack: the file ends inside its header"),
        (vec![at("taken"), at("x.pack")], "is a file that holds no images"),
    ] {
        let (code, message) = failure(sogclr().arg("pack").args(&more));
        assert!(code == 2 && message.contains(words), "{code} {message}");
    }
    assert_eq!(std::fs::read(at("taken")).unwrap(), b"mine");
    assert!(!root.path().join("x.pack").exists());
}
