//! Certificates for the tests of ports that speak TLS.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, date_time_ymd};

/// A certificate for `name` and its key, valid up to a year's beginning, as files.
pub(crate) fn certificate(folder: &Path, name: &str, last_year: i32) -> (PathBuf, PathBuf) {
    write(folder, CertificateParams::new(vec![name.to_owned()]).unwrap(), last_year)
}

/// As [`certificate`], without a common name.
pub(crate) fn unnamed_certificate(folder: &Path, name: &str, last_year: i32) -> (PathBuf, PathBuf) {
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "a server of a cluster");
    write(folder, params, last_year)
}

fn write(folder: &Path, mut params: CertificateParams, last_year: i32) -> (PathBuf, PathBuf) {
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(last_year, 1, 1);
    let key = KeyPair::generate().unwrap();
    let made = params.self_signed(&key).unwrap();
    let files = (folder.join("certificate.pem"), folder.join("key.pem"));
    fs::write(&files.1, key.serialize_pem()).unwrap();
    fs::set_permissions(&files.1, PermissionsExt::from_mode(0o600)).unwrap();
    fs::write(&files.0, made.pem()).unwrap();
    files
}
