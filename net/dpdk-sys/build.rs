//! Finds DPDK through pkg-config, compiles the shim and generates the bindings; does nothing unless the feature `bind`
//! is on.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "bind")]
    if let Err(error) = bind::bind() {
        println!("cargo::error={error}");
    }
}

#[cfg(feature = "bind")]
mod bind {
    use std::env;
    use std::path::PathBuf;
    use std::process::Command;

    /// The oldest DPDK that has all the names that the shim uses.
    const OLDEST: &str = "21.11";
    /// The first version that the shim has not been tried with: it is accepted with a warning.
    const UNTRIED: &str = "23.0";
    /// The linked libraries. Drivers are plug-ins, which DPDK loads at run time, except for the one that connects two
    /// ports of one process.
    const LIBRARIES: [&str; 6] = ["rte_eal", "rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_net_ring"];
    /// The functions of DPDK that are called.
    const FUNCTIONS: &str = "ss_.*|rte_eal_(init|cleanup|process_type)|rte_eth_dev_(count_avail|start|stop|close|is_valid_port|socket_id|\
        rx_intr_enable|rx_intr_disable|rx_intr_ctl_q_get_fd)|rte_eth_(find_next|promiscuous_enable|allmulticast_enable|tx_done_cleanup)|rte_strerror|\
        rte_pktmbuf_pool_create|rte_mempool_(free|avail_count|in_use_count)|rte_mp_disable|rte_thread_(register|unregister)|rte_version";

    /// Returns pkg-config's answer about DPDK.
    fn pkg_config(arguments: &[&str]) -> Result<Vec<String>, String> {
        let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".to_owned());
        let hint = "install DPDK's development files (Debian: dpdk-dev libdpdk-dev libclang-dev clang pkg-config), or leave the feature \
                    `dpdk` out";
        let output = Command::new(&program)
            .args(arguments)
            .arg("libdpdk")
            .output()
            .map_err(|error| format!("cannot run {program}: {error}; {hint}"))?;
        if !output.status.success() {
            return Err(format!("{program} finds no DPDK from {OLDEST} on; {hint}"));
        }
        let said = String::from_utf8_lossy(&output.stdout);
        Ok(said.split_whitespace().map(str::to_owned).collect())
    }

    pub(super) fn bind() -> Result<(), String> {
        println!("cargo::rerun-if-env-changed=PKG_CONFIG");
        println!("cargo::rerun-if-env-changed=PKG_CONFIG_PATH");
        for file in ["src/shim.c", "src/shim.h", "src/bound.h"] {
            println!("cargo::rerun-if-changed={file}");
        }
        pkg_config(&["--print-errors", &format!("--atleast-version={OLDEST}")])?;
        if pkg_config(&[&format!("--atleast-version={UNTRIED}")]).is_ok() {
            println!("cargo::warning=this DPDK is {UNTRIED} or later, with which Sandstorm has not been tried");
        }
        // The flags name the CPU that DPDK was built for (`-march`), which its inline functions need, and the
        // configuration to include.
        let flags = pkg_config(&["--cflags"])?;
        let mut shim = cc::Build::new();
        shim.file("src/shim.c").warnings(false).flag("-Wall").flag("-Wno-deprecated-declarations");
        for flag in &flags {
            shim.flag(flag);
        }
        shim.try_compile("sandstorm_dpdk_shim").map_err(|error| format!("cannot compile the shim: {error}"))?;
        for flag in pkg_config(&["--libs-only-L"])? {
            if let Some(folder) = flag.strip_prefix("-L") {
                println!("cargo::rustc-link-search=native={folder}");
            }
        }
        LIBRARIES.iter().for_each(|library| println!("cargo::rustc-link-lib=dylib={library}"));
        let bindings = bindgen::Builder::default()
            .header("src/bound.h")
            .clang_args(&flags)
            .allowlist_function(FUNCTIONS)
            .allowlist_type("ss_.*")
            .allowlist_var("SS_.*")
            // Only the shim uses their fields; some cannot be expressed in Rust.
            .opaque_type("rte_mempool|rte_mbuf|rte_flow|rte_device")
            .wrap_unsafe_ops(true)
            .layout_tests(true)
            .generate_comments(false)
            .rust_edition(bindgen::RustEdition::Edition2024)
            .generate()
            .map_err(|error| format!("cannot generate bindings: {error}"))?;
        let out = PathBuf::from(env::var("OUT_DIR").map_err(|error| error.to_string())?);
        bindings.write_to_file(out.join("bound.rs")).map_err(|error| format!("cannot write the bindings: {error}"))
    }
}
