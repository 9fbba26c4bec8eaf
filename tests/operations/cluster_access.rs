//! Promise (docs/cluster.md, "Trust"): a cluster's etcd is reached over TLS, by a user with rights on the cluster's
//! keys alone; a server without the right authority, certificate or password is told so, and no password is shown.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use super::cluster::EtcdProcess;
use super::http::has_program;
use crate::common::certificates::{certificate, unnamed_certificate};
use crate::common::eventually;
use crate::common::process::{Server, serve};

const PASSWORD: &str = "a password with spaces";

/// Runs `etcdctl` with an authority, a certificate and its key; `None` if there is none here.
fn etcdctl(etcd: &EtcdProcess, files: [&str; 3], line: &[&str]) -> Option<()> {
    if !has_program("etcdctl", "etcd-client") {
        return None;
    }
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").arg("--endpoints").arg(format!("https://127.0.0.1:{}", etcd.port()));
    command.args(["--cacert", files[0], "--cert", files[1], "--key", files[2]]);
    let output = command.args(line).output().unwrap();
    assert!(output.status.success(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
    Some(())
}

fn set_up_users(etcd: &EtcdProcess, files: [&str; 3]) -> Option<()> {
    for line in [
        &["user", "add", "root:top"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "server"],
        &["role", "grant-permission", "server", "--prefix=true", "readwrite", "/sandstorm/test/"],
        &["user", "add", &format!("server:{PASSWORD}")],
        &["user", "grant-role", "server", "server"],
        &["auth", "enable"],
    ] {
        etcdctl(etcd, files, line)?;
    }
    Some(())
}

#[test]
fn an_etcd_is_reached_over_tls_by_a_user_of_its_own() {
    let [folder, servers, strangers] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let text = |path: PathBuf| path.display().to_string();
    let pair = |(certificate, key)| [text(certificate), text(key)];
    let [etcds, etcds_key] = pair(certificate(folder.path(), "127.0.0.1", 4000));
    let [own, key] = pair(unnamed_certificate(servers.path(), "127.0.0.1", 4000));
    let [other, other_key] = pair(unnamed_certificate(strangers.path(), "127.0.0.1", 4000));
    let password = text(folder.path().join("password"));
    fs::write(&password, format!("{PASSWORD}\n")).unwrap();
    // The gateway asks the etcd itself, with the etcd's own certificate.
    let trusted = text(folder.path().join("trusted.pem"));
    fs::write(&trusted, [&etcds, &own].map(|path| fs::read_to_string(path).unwrap()).concat()).unwrap();
    let tls = ["--cert-file", &etcds, "--key-file", &etcds_key, "--trusted-ca-file", &trusted, "--client-cert-auth"];
    let Some(mut etcd) = EtcdProcess::start_with(("https", tls.map(str::to_owned).to_vec())) else { return };
    assert!(eventually(|| TcpStream::connect(("127.0.0.1", etcd.port())).is_ok()));
    if set_up_users(&etcd, [&etcds, &own, &key]).is_none() {
        return;
    }
    let cluster = etcd.cluster().replace("etcd://", "etcds://");
    let server = ["--data", "127.0.0.1:0", "--workers", "1", "--no-builder", "--cluster"];
    let with = |cluster: &str, access: &[(&str, &str)]| -> Vec<String> {
        let access = access.iter().flat_map(|(name, value)| [(*name).to_owned(), (*value).to_owned()]);
        server.iter().map(|word| (*word).to_owned()).chain([cluster.to_owned()]).chain(access).collect()
    };
    let ca = ("--etcd-ca", etcds.as_str());
    let identity = [("--etcd-certificate", own.as_str()), ("--etcd-key", key.as_str())];
    let user = [("--etcd-user", "server"), ("--etcd-password-file", password.as_str())];

    let wrong_password = text(folder.path().join("wrong-password"));
    fs::write(&wrong_password, "another").unwrap();
    let mistaken = [("--etcd-user", "server"), ("--etcd-password-file", wrong_password.as_str())];
    let stranger = [("--etcd-certificate", other.as_str()), ("--etcd-key", other_key.as_str())];
    let elsewhere = cluster.replace("/test", "/elsewhere");
    for (cluster, access, why) in [
        (&cluster, [&identity[..], &user].concat(), "certificate"),
        (&cluster, [&[("--etcd-ca", other.as_str())][..], &identity, &user].concat(), "certificate"),
        (&cluster, [&[ca][..], &user].concat(), "certificate"),
        (&cluster, [&[ca][..], &stranger, &user].concat(), "certificate"),
        (&cluster, [&[ca][..], &identity].concat(), "user name is empty"),
        (&cluster, [&[ca][..], &identity, &mistaken].concat(), "is not let in"),
        (&elsewhere, [&[ca][..], &identity, &user].concat(), "permission denied"),
    ] {
        let state = tempfile::tempdir().unwrap();
        let line = with(cluster, &access);
        let words: Vec<&str> = line.iter().map(String::as_str).collect();
        let output = serve(None, state.path(), &words).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && error.contains("cannot join") && error.contains(why),
            "{access:?}: {error}"
        );
        assert!(!error.contains(PASSWORD) && !error.contains("another"), "{error}");
    }

    let line = with(&cluster, &[&[ca][..], &identity, &user].concat());
    let words: Vec<&str> = line.iter().map(String::as_str).collect();
    let server = Server::start_in(None, Arc::new(tempfile::tempdir().unwrap()), &words);
    assert!(eventually(|| server.json("cluster status")["epoch"] == 1));
    server.json("tenant create shop --open");
    // It forgets its tokens when it starts again, so that the server shows its password once more.
    etcd.stop();
    assert!(eventually(|| server.json("cluster status")["trouble"].is_string()));
    etcd.restart();
    assert!(eventually(|| server.json("cluster status")["trouble"].is_null()));
    server.json("table create items --tenant shop");
    server.json("put items apple 3 --tenant shop");
}
