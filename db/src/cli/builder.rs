//! `sandstorm builder …`: a builder on its own host, its key, artifacts made without a server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use sandstorm_db::builder::{Builder, BuilderConfig, BuilderKey, BuilderServer, Source, TOKEN_FILE};
use sandstorm_db::config::{Config, Overrides, prepare_state_dir};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::Global;
use super::output::{Failure, Out, bytes_in_words};

/// A builder on its own host.
#[derive(Debug, Subcommand)]
pub(super) enum BuilderCommand {
    /// Serve other hosts' servers: check, compile and sign what they send
    Serve(ServeArgs),
    /// Print the public key, for builder.trusted_keys of servers
    Key(ConfigArg),
    /// Make a signed artifact of an extension, for `sandstorm ext push --artifact`
    Build(BuildArgs),
}

/// Where the builder's settings are.
#[derive(Debug, Args)]
pub(super) struct ConfigArg {
    /// Configuration file (TOML); its section `[builder]` and its state count
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Options of the service.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// Address to serve
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7398")]
    listen: SocketAddr,
    /// Serve without TLS although other machines reach the address: they can read sources and the token
    #[arg(long)]
    allow_plain: bool,
}

/// What to build, for whom.
#[derive(Debug, Args)]
pub(super) struct BuildArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// Folder with extension.toml and src/
    folder: PathBuf,
    /// Version of the extension on the server: above every one that it has loaded
    #[arg(long = "version", value_name = "N", id = "number", value_parser = clap::value_parser!(u64).range(1..=(1 << 53)))]
    number: u64,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(super) fn run(global: &Global, command: BuilderCommand, out: &Out) -> Result<(), Failure> {
    match command {
        BuilderCommand::Serve(args) => serve(global, &args, out),
        BuilderCommand::Key(args) => {
            let config = settings(global, &args)?;
            std::fs::create_dir_all(&config.state)?;
            let key = BuilderKey::open(&config.state)?.public().to_hex();
            out.show(&json!({"public_key": key}), |_| format!("{key}\n"))
        }
        BuilderCommand::Build(args) => build(global, &args, out),
    }
}

/// The builder of this host: its state is the server's, if there is one.
fn settings(global: &Global, args: &ConfigArg) -> Result<BuilderConfig, Failure> {
    let refuse = |error: &dyn std::fmt::Display| Failure::new(error.to_string()).code("config");
    let overrides = Overrides { state: global.state.clone(), ..Overrides::default() };
    let config = Config::load(args.config.as_deref(), &overrides).map_err(|error| refuse(&error))?;
    prepare_state_dir(&config.state).map_err(|error| refuse(&error))?;
    // No worker runs here: compilers may use all processors.
    Ok(BuilderConfig { cores: Vec::new(), ..config.builder_config() })
}

fn serve(global: &Global, args: &ServeArgs, out: &Out) -> Result<(), Failure> {
    if !args.listen.ip().is_loopback() && !args.allow_plain {
        let message = format!("{} is reached from other machines, and the service speaks plain HTTP", args.listen);
        return Err(Failure::new(message)
            .hint("listen on 127.0.0.1 behind a TLS proxy or an SSH tunnel, or say --allow-plain if the network is your own")
            .code("config"));
    }
    let config = settings(global, &args.config)?;
    let token = config.state.join(TOKEN_FILE);
    let server =
        BuilderServer::bind(args.listen, config).map_err(|error| Failure::new(error.to_string()).code("start"))?;
    let (address, key) = (server.address().to_string(), server.public_key().to_hex());
    let shown = json!({"listen": address, "public_key": key, "token_file": token});
    out.show(&shown, |_| {
        format!("sandstorm builder on http://{address}\npublic key: {key}\ntoken: {}\n", token.display())
    })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let stop = async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        server.run(stop).await
    })?;
    Ok(())
}

fn build(global: &Global, args: &BuildArgs, out: &Out) -> Result<(), Failure> {
    let tenant = global.tenant.as_deref().and_then(|tenant| tenant.parse::<u32>().ok()).ok_or_else(|| {
        Failure::new("whose extension is it?").hint("--tenant ID: the number that `sandstorm tenant show` prints")
    })?;
    let source = Source::read(&args.folder)?;
    let builder = Builder::open(&settings(global, &args.config)?)?;
    let (artifact, warnings) = builder.build(tenant, args.number, &source)?;
    write(&args.output, &artifact.encode())?;
    let header = &artifact.header;
    let digest: String = header.source_digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let shown = json!({
        "file": args.output, "name": header.name, "tenant": tenant, "version": header.version, "source_digest": digest,
        "compiler": format!("{:016x}", header.compiler), "api": format!("{:016x}", header.api_fingerprint),
        "abi": header.abi_version, "library_bytes": artifact.elf.len(), "public_key": builder.public_key().to_hex(),
        "diagnostics": warnings,
    });
    out.show(&shown, |_| {
        let remarks: String = warnings.iter().map(|warning| format!("{}\n", warning.rendered.trim_end())).collect();
        format!(
            "{remarks}wrote {}: {} version {} for tenant {tenant} ({})\nnext: sandstorm ext push --artifact {}\n",
            args.output.display(),
            header.name,
            header.version,
            bytes_in_words(artifact.elf.len() as u64),
            args.output.display()
        )
    })
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes)
        .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())).code("io"))
}
