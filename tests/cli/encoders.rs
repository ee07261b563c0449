//! Every encoder serves images alone and image–text pairs.

use crate::{failure, sogclr};
use safetensors::SafeTensors;
use std::path::Path;

const TINY: &[&str] = &["pretrain", "--image-size", "16", "--batch", "8", "--epochs", "1"];
const TEXT: &str = "text={ width = 16, layers = 1, heads = 2, context = 12, vocabulary = 49408, output = 24 }";

fn train(out: &Path, more: &[&str]) {
    sogclr().args(TINY).arg("--out").arg(out).args(more).assert().success();
}

fn weights(run: &Path) -> Vec<u8> {
    std::fs::read(run.join("encoder.safetensors")).unwrap()
}

fn names(run: &Path) -> Vec<String> {
    SafeTensors::deserialize(&weights(run)).unwrap().names().into_iter().map(str::to_owned).collect()
}

#[test]
fn a_vision_transformer_trains_on_images_alone_and_resumes_to_the_same_bytes() {
    let root = tempfile::tempdir().unwrap();
    let (run, again) = (root.path().join("vit"), root.path().join("again"));
    let settings = ["--encoder", "vit-tiny", "--limit", "24", "--set", "encoder.pool=mean"];
    train(&run, &[&settings[..], &["--set", "train.checkpoint_minutes=0", "--keep-every", "1"]].concat());
    let config = std::fs::read_to_string(run.join("config.toml")).unwrap();
    assert!(config.contains("patch = 2") && config.contains("pool = \"mean\""), "{config}");
    assert!(
        names(&run).contains(&"blocks.11.attn.qkv.weight".to_owned())
            && names(&run).contains(&"fc_norm.bias".to_owned())
    );
    let whole = weights(&run);
    std::fs::remove_file(run.join("checkpoints/step-000000003.safetensors")).unwrap();
    sogclr().arg("resume").arg(&run).assert().success();
    assert!(weights(&run) == whole);
    // Weights of timm's have a classifier, which has no place here.
    let init = run.join("encoder.safetensors");
    train(&again, &[&settings[..], &["--init", init.to_str().unwrap()]].concat());
    sogclr().args(["eval", "knn", "-k", "3"]).arg(&again).assert().success();
    let script = std::fs::read_to_string(run.join("load.py")).unwrap();
    assert!(script.contains("timm.models.vision_transformer") && script.contains("\"avg\""), "{script}");
    for (more, words) in [
        (&["--views", "2x16+2x8"][..], "vit-tiny takes images of one size"),
        (&["--set", "encoder.patch=3"], "must divide images of 16 pixels"),
        (&["--method", "infomin"], "takes images of one size"),
        (&["--set", "encoder.width=2"], "width"),
    ] {
        let out = root.path().join("refused");
        let (code, text) = failure(sogclr().args(TINY).args(settings).args(more).arg("--out").arg(&out));
        assert!(code == 2 && text.contains(words) && !out.exists(), "{more:?}: {text}");
    }
}

#[test]
fn frozen_patches_stay_as_they_were_drawn() {
    let root = tempfile::tempdir().unwrap();
    let patches = |frozen: bool| {
        let run = root.path().join(frozen.to_string());
        let freeze = format!("encoder.freeze_patches={frozen}");
        train(&run, &["--encoder", "vit-tiny", "--limit", "16", "--keep-every", "1", "--set", &freeze]);
        let of = |path: std::path::PathBuf, name: &str| {
            let bytes = std::fs::read(path).unwrap();
            SafeTensors::deserialize(&bytes).unwrap().tensor(name).unwrap().data().to_vec()
        };
        let first = of(run.join("checkpoints/step-000000000.safetensors"), "model.encoder.patch_embed.proj.weight");
        first == of(run.join("encoder.safetensors"), "patch_embed.proj.weight")
    };
    assert!(patches(true) && !patches(false));
}

#[test]
fn clips_resnet_trains_on_images_alone() {
    let root = tempfile::tempdir().unwrap();
    let run = root.path().join("clip");
    let settings = ["--encoder", "clip-xs", "--image-size", "32", "--limit", "24", "--set", "encoder.width=0.25"];
    train(&run, &settings);
    assert!(!run.join("open_clip.json").exists(), "there is no text encoder");
    sogclr().args(["eval", "knn", "-k", "3"]).arg(&run).assert().success();
}

#[test]
fn any_image_encoder_meets_texts() {
    let root = tempfile::tempdir().unwrap();
    for (encoder, width) in [("resnet18", &["--set", "encoder.width=0.0625"][..]), ("vit-tiny", &[])] {
        let run = root.path().join(encoder);
        let pairs = ["--pairs", "emoji", "--limit", "24", "--encoder", encoder, "--set", TEXT];
        train(&run, &[&pairs[..], width].concat());
        let names = names(&run);
        assert!(names.contains(&"visual.head.proj.weight".to_owned()), "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("visual.trunk.")), "{names:?}");
        sogclr().args(["search"]).arg(&run).arg("red heart").assert().success();
        sogclr().args(["eval", "retrieval"]).arg(&run).assert().success();
        // It goes on from its own weights.
        let (init, again) = (run.join("encoder.safetensors"), root.path().join(format!("{encoder}-again")));
        train(&again, &[&pairs[..], width, &["--init", init.to_str().unwrap()]].concat());
    }
}
