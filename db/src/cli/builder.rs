//! `sandstorm builder …`: a builder on its own host, its key, artifacts made without a server.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use data_encoding::HEXLOWER;
use sandstorm_builder::{
    BuilderConfig, BuilderKey, InProcessBuilder, PushedCode, PushedModule, PushedSource, TOKEN_FILE, prepare_folder,
};
use sandstorm_control::builder_service::BuilderServer;
use sandstorm_control::config::{CliOverrides, ServerSettings, TlsOverrides, prepare_state_dir};
use sandstorm_net::CodeTier;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::GlobalArgs;
use super::output::{CliError, OutputPrinter, format_bytes};

/// A builder on its own host.
#[derive(Debug, Subcommand)]
pub(super) enum BuilderCommand {
    /// Serve servers on other machines: check, compile and sign the source that they send
    Serve(BuilderServeArgs),
    /// Print this builder's public key, for builder.trusted_keys in the servers' configuration
    Key(ConfigArg),
    /// Make a signed artifact of an extension, for `sandstorm ext push --artifact`
    ///
    /// It is signed for one tenant, and no server loads it for another: --tenant takes that tenant's id, the number
    /// that `sandstorm tenant show` prints, not its name.
    Build(BuildArgs),
}

/// Where the builder's settings are.
#[derive(Debug, Args)]
pub(super) struct ConfigArg {
    /// Configuration file (TOML); only `state`, `[builder]` and `[builder_tls]` of it are used
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Options of the service.
#[derive(Debug, Args)]
pub(super) struct BuilderServeArgs {
    #[command(flatten)]
    config: ConfigArg,
    /// Address to listen on; TLS is needed unless it is on loopback
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7398")]
    listen: SocketAddr,
    /// TLS, with a certificate that is made at the first start; servers pin its fingerprint
    #[arg(long)]
    tls: bool,
    /// A name that this certificate is valid for, beside localhost and the address; may be repeated
    #[arg(long = "tls-name", value_name = "NAME")]
    tls_names: Vec<String>,
    /// TLS, with this certificate (PEM; read again on SIGHUP and when it changes)
    #[arg(long, value_name = "FILE", requires = "tls_key", conflicts_with = "tls")]
    tls_certificate: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
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
    #[arg(required_unless_present = "wasm")]
    folder: Option<PathBuf>,
    /// A WebAssembly module that was made elsewhere, instead of source: for the sandboxed tier
    #[arg(long, value_name = "FILE", conflicts_with_all = ["folder", "code"])]
    wasm: Option<PathBuf>,
    /// The extension's name, if it is another than the module's file's
    #[arg(long, requires = "wasm")]
    name: Option<String>,
    /// Version number that the server gives it; has to be above every version loaded there before
    #[arg(long = "version", value_name = "N", id = "number", value_parser = clap::value_parser!(u64).range(1..=(1 << 53)))]
    number: u64,
    /// The tier to build for, as the tenant's policy asks for it: sandboxed or native
    #[arg(long, value_name = "TIER", default_value_t)]
    code: CodeTier,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(super) fn run(global: &GlobalArgs, command: BuilderCommand, out: &OutputPrinter) -> Result<(), CliError> {
    match command {
        BuilderCommand::Serve(args) => serve(global, &args, out),
        BuilderCommand::Key(args) => {
            let (_, config) = settings(global, &args)?;
            prepare_folder(&config.state)?;
            let key = BuilderKey::open(&config.state)?.public().to_hex();
            out.show(&json!({"public_key": key}), |_| format!("{key}\n"))
        }
        BuilderCommand::Build(args) => build(global, &args, out),
    }
}

/// The builder of this host: its state is the server's, if there is one.
fn settings(global: &GlobalArgs, args: &ConfigArg) -> Result<(ServerSettings, BuilderConfig), CliError> {
    let refuse = |error: &dyn std::fmt::Display| CliError::new(error.to_string()).code("config");
    let overrides = CliOverrides { state: global.state.clone(), ..CliOverrides::default() };
    let config = ServerSettings::load(args.config.as_deref(), &overrides).map_err(|error| refuse(&error))?;
    prepare_state_dir(&config.state).map_err(|error| refuse(&error))?;
    // No worker runs here: compilers may use all processors.
    let builder = BuilderConfig { cores: Vec::new(), ..config.builder_config() };
    Ok((config, builder))
}

fn serve(global: &GlobalArgs, args: &BuilderServeArgs, out: &OutputPrinter) -> Result<(), CliError> {
    super::serve::start_log();
    let (config, builder) = settings(global, &args.config)?;
    let over = TlsOverrides {
        certificate: args.tls_certificate.clone(),
        key: args.tls_key.clone(),
        self_signed: args.tls,
        names: args.tls_names.clone(),
    };
    let tls = config.builder_service_tls(args.listen, &over, args.allow_plain);
    let tls = tls.map_err(|error| CliError::new(error.to_string()).code("config"))?;
    let token = builder.state.join(TOKEN_FILE);
    let server = BuilderServer::bind(args.listen, builder, &tls)
        .map_err(|error| CliError::new(error.to_string()).code("start"))?;
    announce(&server, &token, out)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let certificate = server.look_again();
        let stop = async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => break,
                    _ = terminate.recv() => break,
                    _ = hangup.recv() => certificate.look(),
                }
            }
        };
        server.run(stop).await
    })?;
    Ok(())
}

fn announce(server: &BuilderServer, token: &Path, out: &OutputPrinter) -> Result<(), CliError> {
    let (url, key, identity) = (server.url(), server.public_key().to_hex(), server.identity());
    let shown = json!({
        "listen": server.address().to_string(), "url": url, "public_key": key, "token_file": token,
        "fingerprint": identity.map(|identity| identity.fingerprint()),
        "certificate": identity.map(|identity| identity.file().display().to_string()),
    });
    out.show(&shown, |_| {
        let certificate = identity.map_or_else(String::new, |identity| {
            let by = if identity.made_here() { " (made here: servers pin it, or trust the file)" } else { "" };
            format!("certificate: {}{by}\nfingerprint: {}\n", identity.file().display(), identity.fingerprint())
        });
        format!("sandstorm builder on {url}\n{certificate}public key: {key}\ntoken: {}\n", token.display())
    })
}

fn build(global: &GlobalArgs, args: &BuildArgs, out: &OutputPrinter) -> Result<(), CliError> {
    let tenant = global.tenant.as_deref().and_then(|tenant| tenant.parse::<u32>().ok()).ok_or_else(|| {
        CliError::new("the tenant of the extension is missing")
            .hint("--tenant ID: the number that `sandstorm tenant show` prints")
    })?;
    let source: PushedCode = match (&args.wasm, &args.folder) {
        (Some(file), _) => PushedModule::read(file, args.name.as_deref())?.into(),
        (None, folder) => PushedSource::read(folder.as_deref().unwrap_or(Path::new(".")))?.into(),
    };
    let builder = InProcessBuilder::open(&settings(global, &args.config)?.1)?;
    let (artifact, warnings) = builder.build(tenant, args.number, source, args.code)?;
    write(&args.output, &artifact.encode())?;
    let header = &artifact.header;
    let digest = HEXLOWER.encode(&header.source_digest);
    let shown = json!({
        "file": args.output, "name": header.name, "tenant": tenant, "version": header.version, "source_digest": digest,
        "compiler": format!("{:016x}", header.compiler), "api": format!("{:016x}", header.api_fingerprint),
        "rules": format!("{:016x}", header.checker),
        "tier": header.tier, "origin": header.origin, "abi": header.abi_version, "library_bytes": artifact.elf.len(), "public_key": builder.public_key().to_hex(),
        "diagnostics": warnings,
    });
    out.show(&shown, |_| {
        let remarks: String = warnings.iter().map(|warning| format!("{}\n", warning.rendered.trim_end())).collect();
        format!(
            "{remarks}wrote {}: {} version {} for tenant {tenant} ({}, {})\nnext: sandstorm ext push --artifact {}\n",
            args.output.display(),
            header.name,
            header.version,
            header.tier,
            format_bytes(artifact.elf.len() as u64),
            args.output.display()
        )
    })
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), CliError> {
    std::fs::write(path, bytes)
        .map_err(|error| CliError::new(format!("cannot write {}: {error}", path.display())).code("io"))
}
