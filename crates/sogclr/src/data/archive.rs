//! Images inside zip and tar files, read in place: of an archive only the list of its files is in memory.

use super::folder::{is_array, is_image};
use super::form::{self, Files, Form};
use super::image::{Rows, header_dimensions};
use super::region::{Packing, Region, read_region};
use super::tree::Tree;
use super::{DataError, Dimensions, Fingerprint, Image, Source};
use crate::storage::open_regular;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Cursor, Read};
use std::path::{Component, Path, PathBuf};

/// Tar files are made of blocks of this many bytes, and end with blocks of zeros.
const BLOCK: u64 = 512;

pub(super) struct ArchiveImages {
    pub archives: Vec<PathBuf>,
    pub regions: Vec<Region>,
    pub form: Form,
}

impl ArchiveImages {
    pub(super) fn read(&self, index: usize) -> Result<Vec<u8>, DataError> {
        let region = &self.regions[index];
        let path = &self.archives[region.archive];
        let whole = read_region(path, region).map_err(|source| DataError::Read { path: path.clone(), source })?;
        whole.map_err(|cause| DataError::Decode { name: self.name(index), cause })
    }

    fn shape(&self, rows: Rows, index: usize) -> Result<Dimensions, DataError> {
        let (bytes, name) = (self.read(index)?, self.name(index));
        match self.form {
            Form::Rgb => header_dimensions(rows, Cursor::new(bytes), &name),
            Form::Stored { .. } => form::dimensions(rows, &bytes, &name),
        }
    }
}

impl Source for ArchiveImages {
    fn count(&self) -> usize {
        self.regions.len()
    }

    fn image(&self, index: usize) -> Result<Image, DataError> {
        self.form.decode(Rows::Upright, &self.read(index)?, &self.name(index))
    }

    fn image_as_stored(&self, index: usize) -> Result<Image, DataError> {
        self.form.decode(Rows::AsStored, &self.read(index)?, &self.name(index))
    }

    fn name(&self, index: usize) -> String {
        let region = &self.regions[index];
        let archive = self.archives[region.archive].file_name().unwrap_or_default().to_string_lossy();
        format!("{archive}/{}", region.name)
    }

    fn check(&self, index: usize) -> Result<Fingerprint, DataError> {
        let bytes = self.read(index)?;
        self.form.check(&bytes, &self.name(index))?;
        Ok(Fingerprint::of(&bytes))
    }

    fn dimensions(&self, index: usize) -> Result<Dimensions, DataError> {
        self.shape(Rows::Upright, index)
    }

    fn dimensions_as_stored(&self, index: usize) -> Result<Dimensions, DataError> {
        self.shape(Rows::AsStored, index)
    }
}

/// Every file of a zip.
pub(super) fn list_zip(path: &Path) -> Result<Vec<Region>, DataError> {
    let format = |cause: String| DataError::Format { path: path.to_owned(), cause };
    let file = open_regular(path).map_err(|source| DataError::Read { path: path.to_owned(), source })?;
    let mut zip = zip::ZipArchive::new(BufReader::new(file)).map_err(|error| format(error.to_string()))?;
    let mut regions = Vec::with_capacity(zip.len());
    for index in 0..zip.len() {
        let entry = zip.by_index_raw(index).map_err(|error| format(error.to_string()))?;
        if entry.is_dir() {
            continue;
        }
        let name = entry.name().map_err(|error| format(error.to_string()))?.into_owned();
        let is_deflated = match entry.compression() {
            zip::CompressionMethod::Stored => false,
            zip::CompressionMethod::Deflated => true,
            other => return Err(format(format!("{name} is packed by {other}: pack it again by deflate"))),
        };
        let start = entry.data_start().ok_or_else(|| format(format!("{name} cannot be located")))?;
        let packing = Packing::Zip { is_deflated, size: entry.size(), crc: entry.crc32() };
        regions.push(Region { name, archive: 0, start, len: entry.compressed_size(), packing });
    }
    Ok(regions)
}

/// Calls `visit` with every file of a tar and its content; the cause if the tar ends too early.
pub(super) fn walk_tar(
    path: &Path,
    mut visit: impl FnMut(Region, &mut dyn Read) -> io::Result<()>,
) -> Result<Option<String>, DataError> {
    let error = |source| DataError::Read { path: path.to_owned(), source };
    let file = open_regular(path).map_err(error)?;
    let length = file.metadata().map_err(error)?.len();
    let mut tar = tar::Archive::new(BufReader::new(file));
    let (mut end, mut last) = (0, "its beginning".to_owned());
    for entry in tar.entries_with_seek().map_err(error)? {
        let mut entry = match entry {
            Ok(entry) => entry,
            Err(error) => return Ok(Some(format!("damaged or truncated after {last} ({error}): fetch it again"))),
        };
        let (start, len) = (entry.raw_file_position(), entry.size());
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if start.checked_add(len).is_none_or(|end| end > length) {
            return Ok(Some(format!("truncated inside {name}: fetch it again")));
        }
        (end, last) = ((start + len).next_multiple_of(BLOCK), name.clone());
        if entry.header().entry_type().is_file() {
            visit(Region { name, archive: 0, start, len, packing: Packing::Tar }, &mut entry).map_err(error)?;
        }
    }
    // A tar that is cut between two files looks whole but for its end.
    Ok((length < end + BLOCK).then(|| format!("truncated after {last}: fetch it again")))
}

/// Every file of a tar.
fn list_tar(path: &Path) -> Result<Vec<Region>, DataError> {
    let mut regions = Vec::new();
    let cut = walk_tar(path, |region, _| {
        regions.push(region);
        Ok(())
    })?;
    match cut {
        Some(cause) => Err(DataError::Format { path: path.to_owned(), cause: format!("it is {cause}") }),
        None => Ok(regions),
    }
}

/// A zip or tar of images as a tree of folders. One folder around everything is passed over, as archives often have one.
pub(super) struct Archive {
    path: PathBuf,
    images: BTreeMap<PathBuf, Region>,
}

impl Archive {
    /// By its extension.
    pub(super) fn open(path: &Path) -> Result<Self, DataError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let regions = match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
            "zip" => list_zip(path)?,
            "tar" => list_tar(path)?,
            "gz" | "tgz" | "bz2" | "xz" | "zst" if name.contains(".t") => {
                let cause = "a compressed tar cannot be read in place: unpack it, or leave out the compression".into();
                return Err(DataError::Format { path: path.to_owned(), cause });
            }
            _ => return Err(DataError::UnknownFile(path.to_owned())),
        };
        let images = regions.into_iter().filter_map(|region| Some((visible_image(&region.name)?, region)));
        Ok(Self { path: path.to_owned(), images: unwrapped(images.collect()) })
    }
}

/// The path of an image inside an archive; none for what is hidden, what macOS adds, and other files.
fn visible_image(name: &str) -> Option<PathBuf> {
    let parts: Option<Vec<&str>> = Path::new(name)
        .components()
        .filter(|part| *part != Component::CurDir)
        .map(|part| match part {
            Component::Normal(part) => part.to_str().filter(|part| !part.starts_with('.') && *part != "__MACOSX"),
            _ => None,
        })
        .collect();
    parts.map(PathBuf::from_iter).filter(|path| is_image(path) || is_array(path))
}

/// Without the folders that everything lies in.
fn unwrapped(mut images: BTreeMap<PathBuf, Region>) -> BTreeMap<PathBuf, Region> {
    loop {
        let inside = |path: &PathBuf| path.parent().and_then(|parent| parent.iter().next().map(PathBuf::from));
        let Some(Some(first)) = images.keys().next().map(inside) else { return images };
        if !images.keys().all(|path| path.starts_with(&first) && path.as_path() != first) {
            return images;
        }
        let inner = |path: PathBuf| path.strip_prefix(&first).map_or(path.clone(), Path::to_owned);
        images = images.into_iter().map(|(path, region)| (inner(path), region)).collect();
    }
}

impl Files for ArchiveImages {
    fn bytes(&self, index: usize) -> Result<Vec<u8>, DataError> {
        self.read(index)
    }

    fn with_form(self, form: Form) -> Self {
        Self { form, ..self }
    }
}

impl Tree for Archive {
    type Images = ArchiveImages;

    fn path(&self) -> &Path {
        &self.path
    }

    fn top(&self) -> Result<(Vec<PathBuf>, Vec<PathBuf>), DataError> {
        let first = |path: &PathBuf| PathBuf::from_iter(path.iter().next());
        let (loose, inside): (Vec<_>, Vec<_>) = self.images.keys().partition(|path| path.iter().count() == 1);
        let folders: BTreeSet<PathBuf> = inside.into_iter().map(first).collect();
        Ok((folders.into_iter().collect(), loose.into_iter().filter(|path| is_image(path)).cloned().collect()))
    }

    fn below(&self, folder: &Path) -> Result<Vec<PathBuf>, DataError> {
        Ok(self.images.keys().filter_map(|path| path.strip_prefix(folder).ok().map(Path::to_owned)).collect())
    }

    fn images(&self, folder: &Path, files: Vec<PathBuf>) -> ArchiveImages {
        let regions = files.iter().map(|file| self.images[&folder.join(file)].clone()).collect();
        ArchiveImages { archives: vec![self.path.clone()], regions, form: Form::Rgb }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Choice, Dataset, Split, open_path};
    use std::io::Write;
    use zip::write::SimpleFileOptions;

    fn png(value: u8) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        let picture = image::RgbImage::from_pixel(4, 3, image::Rgb([value, 1, 2]));
        picture.write_to(&mut bytes, image::ImageFormat::Png).unwrap();
        bytes.into_inner()
    }

    fn zip(path: &Path, names: &[&str]) {
        let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
        for (at, name) in names.iter().enumerate() {
            let packed = [zip::CompressionMethod::Stored, zip::CompressionMethod::Deflated][at % 2];
            zip.start_file(*name, SimpleFileOptions::default().compression_method(packed)).unwrap();
            zip.write_all(&png(at as u8)).unwrap();
        }
        zip.finish().unwrap();
    }

    fn tar(path: &Path, names: &[&str]) {
        let mut tar = tar::Builder::new(std::fs::File::create(path).unwrap());
        for (at, name) in names.iter().enumerate() {
            let (bytes, mut header) = (png(at as u8), tar::Header::new_gnu());
            header.set_size(bytes.len() as u64);
            tar.append_data(&mut header, name, bytes.as_slice()).unwrap();
        }
        tar.finish().unwrap();
    }

    fn folder(root: &Path, names: &[&str]) {
        for (at, name) in names.iter().enumerate() {
            std::fs::create_dir_all(root.join(name).parent().unwrap()).unwrap();
            std::fs::write(root.join(name), png(at as u8)).unwrap();
        }
    }

    type Content = Vec<(Image, Option<u32>)>;

    /// Pixels and label of every image in order.
    fn content(split: &Split) -> Content {
        (0..split.len()).map(|id| (split.image(id).unwrap(), split.label(id))).collect()
    }

    fn summary(data: Dataset) -> (Content, Option<Content>, Vec<String>) {
        (content(&data.train), data.test.as_ref().map(content), data.classes)
    }

    #[test]
    fn an_archive_is_what_the_folder_in_it_is() {
        let root = tempfile::tempdir().unwrap();
        // "a-b" sorts before "a/…" as text, and behind it as a path.
        let trees: [&[&str]; 4] = [
            &["b/2.png", "a/deep/1.png", "a-b/3.png", "a/0.png"],
            &["train/b/1.png", "train/a/1.png", "val/b/7.png", "Test/a/9.png"],
            &["2.png", "1.png", "album/3.png", "album/4.png"],
            &["car/1.png", "train/1.png", "train/2.png"],
        ];
        for (at, names) in trees.into_iter().enumerate() {
            let [plain, zipped, tarred] = ["", ".zip", ".tar"].map(|end| root.path().join(format!("{at}{end}")));
            folder(&plain, names);
            let wanted = summary(open_path(&plain, &Choice::default()).unwrap());
            zip(&zipped, names);
            tar(&tarred, names);
            assert_eq!(summary(open_path(&zipped, &Choice::default()).unwrap()), wanted, "{names:?}");
            assert_eq!(summary(open_path(&tarred, &Choice::default()).unwrap()), wanted, "{names:?}");
            // A folder around everything, and what others leave in archives.
            let wrapped: Vec<String> = names.iter().map(|name| format!("./photos/x/{name}")).collect();
            let mut wrapped: Vec<&str> = wrapped.iter().map(String::as_str).collect();
            wrapped.extend(["__MACOSX/photos/._1.png", "photos/.hidden/1.png", "read.txt"]);
            zip(&zipped, &wrapped);
            assert_eq!(summary(open_path(&zipped, &Choice::default()).unwrap()), wanted, "{wrapped:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_an_archive_is_said() {
        let root = tempfile::tempdir().unwrap();
        let [zipped, tarred, gzipped, other] =
            ["a.zip", "a.tar", "a.tar.gz", "a.7z"].map(|name| root.path().join(name));
        let names = ["a/1.png", "b/1.png"];
        zip(&zipped, &names);
        tar(&tarred, &names);
        std::fs::write(&gzipped, b"x").unwrap();
        std::fs::write(&other, b"x").unwrap();
        let error = |path: &Path| open_path(path, &Choice::default()).err().unwrap().to_string();
        assert!(error(&gzipped).contains("unpack it"));
        assert!(error(&other).contains("a.7z is a file"), "{}", error(&other));
        let (zip_bytes, tar_bytes) = (std::fs::read(&zipped).unwrap(), std::fs::read(&tarred).unwrap());
        std::fs::write(&zipped, &zip_bytes[..zip_bytes.len() / 2]).unwrap();
        assert!(error(&zipped).contains("a.zip: "), "{}", error(&zipped));
        for cut in [100, 600, 1024, 1400, 2048] {
            std::fs::write(&tarred, &tar_bytes[..cut]).unwrap();
            assert!(error(&tarred).contains("truncated"), "{cut}: {}", error(&tarred));
        }
        // 2⁶² bytes in base 256: a size that no file has.
        let mut huge = tar_bytes.clone();
        huge[124..136].copy_from_slice(&[0x80, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0]);
        let sum: u32 = huge[..512]
            .iter()
            .enumerate()
            .map(|(k, &b)| u32::from(if (148..156).contains(&k) { b' ' } else { b }))
            .sum();
        huge[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        std::fs::write(&tarred, &huge).unwrap();
        assert!(error(&tarred).contains("truncated"), "{}", error(&tarred));
        std::fs::write(&tarred, [0; 1024]).unwrap();
        assert!(error(&tarred).contains("holds no images"), "{}", error(&tarred));
    }
}
