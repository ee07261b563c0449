//! The `sogclr` program; everything is in the library's `cli`.

fn main() -> std::process::ExitCode {
    sogclr::cli::main()
}
