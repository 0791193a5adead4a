//! SeaweedFS, with Amazon's protocol.

use crate::{
    BUCKET, Program, installed,
    requests::{is_made, status},
};
use baton_port_tests::Ports;
use std::{path::Path, process::Command};

const KEY: &str = "baton-test";
const SECRET: &str = "only+for/this test";

pub(crate) struct Seaweed {
    ports: Ports<8>,
    /// How many, and megabytes of each.
    volumes: (u32, u32),
}

impl Seaweed {
    pub(crate) fn new(count: u32, megabytes: u32) -> Self {
        Self {
            ports: Ports::free(),
            volumes: (count, megabytes),
        }
    }

    /// Of the master, the volumes, the filer, and S3. Each has one for HTTP and one for the others.
    fn ports(&self) -> [[u16; 2]; 4] {
        let [a, b, c, d, e, f, g, h] = self.ports.numbers;
        [[a, b], [c, d], [e, f], [g, h]]
    }
}

impl Program for Seaweed {
    fn command(&self, folder: &Path) -> Command {
        let [master, volume, filer, s3] = self.ports();
        let port = |name: &str, port: u16| format!("-{name}={port}");
        let mut command = Command::new(installed("bin/weed"));
        command
            .arg("server")
            .arg(format!("-dir={}", folder.display()))
            .args(["-ip=127.0.0.1", "-filer", "-s3", "-master.telemetry=false"])
            .arg("-volume.minFreeSpace=1")
            .arg(format!("-volume.max={}", self.volumes.0))
            .arg(format!("-master.volumeSizeLimitMB={}", self.volumes.1))
            .args(["-s3.port.iceberg=0", "-s3.port.lance=0"])
            .args([
                port("master.port", master[0]),
                port("master.port.grpc", master[1]),
            ])
            .args([
                port("volume.port", volume[0]),
                port("volume.port.grpc", volume[1]),
            ])
            .args([
                port("filer.port", filer[0]),
                port("filer.port.grpc", filer[1]),
            ])
            .args([port("s3.port", s3[0]), port("s3.port.grpc", s3[1])])
            .env("AWS_ACCESS_KEY_ID", KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET);
        command
    }

    fn serves(&self) -> bool {
        let path = format!("/buckets/{BUCKET}/");
        let [_, _, [filer, _], [s3, _]] = self.ports();
        // A file can be written when the volumes are there.
        let file = format!("{path}ready");
        let is_done = |status: Option<u16>| status.is_some_and(|status| status < 300);
        is_made(status(filer, "POST", &path, ""))
            && is_done(status(filer, "PUT", &file, "x"))
            && is_done(status(filer, "DELETE", &file, ""))
            && status(s3, "GET", "/class", "") == Some(403)
    }

    fn scheme(&self) -> &'static str {
        "s3"
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        let [.., [s3, _]] = self.ports();
        let endpoint = format!("http://127.0.0.1:{s3}");
        vec![
            ("AWS_ENDPOINT_URL", endpoint),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
        ]
    }
}
