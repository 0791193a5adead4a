//! Every address, with the id of another person's job, notebook or chunk.

use super::*;

struct Request {
    method: reqwest::Method,
    path: String,
    body: Vec<u8>,
}

fn get(path: String) -> Request {
    Request {
        method: reqwest::Method::GET,
        path,
        body: Vec::new(),
    }
}

fn post(path: String, body: impl Into<Vec<u8>>) -> Request {
    Request {
        method: reqwest::Method::POST,
        path,
        body: body.into(),
    }
}

/// The requests for each address with these ids. An address without ids is requested as it is.
fn requests(ids: &Ids) -> BTreeMap<&'static str, Vec<Request>> {
    let Ids {
        job,
        closed,
        notebook,
        chunk,
        ..
    } = ids;
    let plain = |path: &'static str| (path, vec![get(path.to_owned())]);
    let of_job = |path: &'static str, body: Option<&str>| {
        let requests = [job, closed].map(|job| {
            let path = path.replace("{job}", &job.to_string());
            body.map_or_else(|| get(path.clone()), |body| post(path.clone(), body))
        });
        (path, requests.into())
    };
    let of_state = |method, body| Request {
        method,
        path: format!("/v1/states/{job}"),
        body,
    };
    let of_orphan = |job| Request {
        method: reqwest::Method::DELETE,
        path: format!("/v1/attachable/{job}"),
        body: Vec::new(),
    };
    let names = encode(&vec![*chunk]);
    let sized = encode(&vec![(*chunk, 5_u64)]);
    let reason = Some(r#"{"reason": "mine now"}"#);
    let forms = ["cancel", "hold", "release", "move_to_front"].map(|action| {
        let form = format!("action={action}&job={job}&reason=x&key=KEY");
        post("/act".to_owned(), form)
    });
    BTreeMap::from([
        plain("/"),
        plain("/audit"),
        plain("/capacity"),
        ("/course", vec![get(format!("/course?name={COURSE}"))]),
        plain("/courses"),
        plain("/health/live"),
        plain("/health/ready"),
        (
            "/job",
            vec![
                get(format!("/job?id={job}")),
                get(format!("/job?id={closed}")),
            ],
        ),
        (
            "/live",
            vec![
                get("/live?of=now".to_owned()),
                get("/live?of=workers".to_owned()),
                get("/live?of=capacity".to_owned()),
                get(format!("/live?of=job&id={job}")),
            ],
        ),
        plain("/metrics"),
        plain("/oauth_callback"),
        plain("/people"),
        plain("/people.csv"),
        (
            "/sign-in",
            vec![
                get("/sign-in".to_owned()),
                post("/sign-in".to_owned(), "token=ada-tokem"),
            ],
        ),
        plain("/signed-out"),
        plain("/status"),
        plain("/version"),
        plain("/workers"),
        ("/act", forms.into()),
        ("/sign-out", vec![post("/sign-out".to_owned(), "")]),
        ("/v1/audit", vec![get(format!("/v1/audit?course={COURSE}"))]),
        (
            "/v1/chunks",
            vec![Request {
                method: reqwest::Method::PUT,
                path: format!("/v1/chunks?notebook={notebook}"),
                body: Vec::new(),
            }],
        ),
        (
            "/v1/chunks/get",
            vec![post("/v1/chunks/get".to_owned(), names.clone())],
        ),
        (
            "/v1/chunks/missing",
            vec![post("/v1/chunks/missing".to_owned(), names.clone())],
        ),
        (
            "/v1/chunks/grants/upload",
            vec![post("/v1/chunks/grants/upload".to_owned(), sized)],
        ),
        (
            "/v1/chunks/grants/download",
            vec![post("/v1/chunks/grants/download".to_owned(), names.clone())],
        ),
        (
            "/v1/chunks/uploaded",
            vec![post("/v1/chunks/uploaded".to_owned(), names.clone())],
        ),
        (
            "/v1/chunks/damaged",
            vec![post("/v1/chunks/damaged".to_owned(), names)],
        ),
        plain("/v1/courses"),
        (
            "/v1/courses/{course}",
            vec![post(format!("/v1/courses/{COURSE}"), "{}")],
        ),
        (
            "/v1/courses/{course}/allowances",
            vec![
                get(format!("/v1/courses/{COURSE}/allowances")),
                post(
                    format!("/v1/courses/{COURSE}/allowances"),
                    r#"{"person": "ada", "gpu_time_ms": 1}"#,
                ),
            ],
        ),
        (
            "/v1/courses/{course}/allowances/revoke",
            vec![post(
                format!("/v1/courses/{COURSE}/allowances/revoke"),
                r#"{"person": "ada"}"#,
            )],
        ),
        (
            "/v1/courses/{course}/files",
            vec![get(format!("/v1/courses/{COURSE}/files"))],
        ),
        (
            "/v1/courses/{course}/files/withdraw",
            vec![post(
                format!("/v1/courses/{COURSE}/files/withdraw"),
                r#"{"name": "data.csv"}"#,
            )],
        ),
        plain("/v1/environments"),
        (
            "/v1/environments/{environment}/lock",
            vec![get("/v1/environments/ml101/lock".to_owned())],
        ),
        (
            "/v1/history",
            vec![get(format!("/v1/history?course={COURSE}"))],
        ),
        (
            "/v1/jobs",
            vec![
                get("/v1/jobs".to_owned()),
                get(format!("/v1/jobs?ends_with={job}")),
                get(format!("/v1/jobs?group={job}")),
                get("/v1/jobs?person=ada".to_owned()),
            ],
        ),
        of_job("/v1/jobs/{job}", None),
        of_job("/v1/jobs/{job}/explanation", None),
        of_job("/v1/jobs/{job}/cancel", Some("{}")),
        of_job("/v1/jobs/{job}/front", reason),
        of_job("/v1/jobs/{job}/hold", reason),
        of_job("/v1/jobs/{job}/release", Some("{}")),
        plain("/v1/openapi.json"),
        plain("/v1/attachable"),
        (
            "/v1/attachable/{job}",
            vec![of_orphan(*job), of_orphan(*closed)],
        ),
        plain("/v1/states"),
        (
            "/v1/states/{name}",
            vec![
                get(format!("/v1/states/{job}")),
                get(format!("/v1/states/{job}?owner=ada&course={COURSE}")),
                get(format!("/v1/states/{job}?notebook={notebook}")),
                of_state(reqwest::Method::PUT, encode(&state_of(*job, *chunk))),
                of_state(reqwest::Method::DELETE, Vec::new()),
            ],
        ),
        (
            "/v1/notebook-token",
            vec![post("/v1/notebook-token".to_owned(), "")],
        ),
        plain("/v1/timetable"),
        plain("/v1/pools"),
        (
            "/v1/pools/{pool}/resume",
            vec![post("/v1/pools/slurm-gpu/resume".to_owned(), "{}")],
        ),
        (
            "/v1/pools/{pool}/test",
            vec![post("/v1/pools/slurm-gpu/test".to_owned(), "")],
        ),
        (
            "/v1/pools/{pool}/workers",
            vec![post("/v1/pools/kube/workers".to_owned(), "{}")],
        ),
        ("/v1/scale/{pool}", vec![get("/v1/scale/kube".to_owned())]),
        ("/v1/proxy", vec![get("/v1/proxy".to_owned())]),
        ("/v1/usage", vec![get("/v1/usage?person=ada".to_owned())]),
        ("/v1/worker", vec![get("/v1/worker".to_owned())]),
        plain("/v1/workers"),
        (
            "/v1/workers/{worker}/drain",
            vec![post("/v1/workers/cpu-0/drain".to_owned(), "{}")],
        ),
        (
            "/v1/workers/{worker}/resume",
            vec![post("/v1/workers/cpu-0/resume".to_owned(), "{}")],
        ),
    ])
}

/// Every address that appears in the broker's sources or in the API's document.
async fn addresses(broker: &Broker) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for folder in ["", "web", "web/page", "web/api"] {
        for entry in fs::read_dir(sources.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            let program = text.split("#[cfg(test)]").next().unwrap_or_default();
            for call in program.split(".route(").skip(1) {
                let Some(address) = call.trim_start().strip_prefix('"') else {
                    continue;
                };
                found.extend(address.split('"').next().map(str::to_owned));
            }
        }
    }
    let document: serde_json::Value =
        serde_json::from_str(&broker.get("/v1/openapi.json").await).unwrap();
    found.extend(document["paths"].as_object().unwrap().keys().cloned());
    // This is the fallback for unknown addresses.
    found.remove("/v1/{*path}");
    found
}

/// Status and text of the response; only the first part of an endless one.
async fn ask(broker: &Broker, token: Option<&str>, key: &str, request: Request) -> String {
    let client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let url = format!("{}{}", broker.dial.address, request.path);
    let mut sent = client.request(request.method, url);
    if let Some(token) = token {
        sent = sent.bearer_auth(token);
    }
    let body = match String::from_utf8(request.body) {
        Ok(text) => text.replace("KEY", key).into_bytes(),
        Err(names) => names.into_bytes(),
    };
    let kind = match (body.first(), request.path.as_str()) {
        (Some(b'{'), _) => "application/json",
        (_, "/act" | "/sign-in" | "/sign-out") => "application/x-www-form-urlencoded",
        _ => "application/octet-stream",
    };
    let sent = sent.header("content-type", kind).body(body).send();
    let mut response = sent.await.unwrap();
    let status = response.status();
    let live = request.path.starts_with("/live") && status.is_success();
    let text = match live {
        true => response.chunk().await.unwrap().unwrap_or_default(),
        false => response.bytes().await.unwrap(),
    };
    format!("{status}\n{}", letters(&text))
}

/// The key in the forms of this caller.
async fn form_key(broker: &Broker, token: Option<&str>) -> String {
    let page = ask(broker, token, "", get("/".to_owned())).await;
    let key = page.split("name=\"key\" value=\"").nth(1);
    let key = key.and_then(|rest| rest.split('"').next());
    key.unwrap_or_default().to_owned()
}

#[tokio::test]
async fn no_address_tells_of_or_touches_the_job_of_another() {
    let mut class = Class::start().await;
    let known = addresses(&class.broker).await;
    let made_up = Ids::made_up();
    let cases: BTreeSet<String> = requests(&made_up).keys().map(|&path| path.into()).collect();
    assert_eq!(known, cases, "an address without a case, or the reverse");

    for token in [Some("mallory"), Some("trudy"), Some("gpu-2"), None] {
        let key = form_key(&class.broker, token).await;
        let (theirs, nobodys) = (requests(&class.ids), requests(&made_up));
        for ((path, theirs), (_, nobodys)) in theirs.into_iter().zip(nobodys) {
            for (theirs, nobodys) in theirs.into_iter().zip(nobodys) {
                let what = format!("{token:?}: {} {}", theirs.method, theirs.path);
                let names_an_id = theirs.path != nobodys.path || theirs.body != nobodys.body;
                let of_theirs = ask(&class.broker, token, &key, theirs).await;
                if names_an_id {
                    let of_nobodys = ask(&class.broker, token, &key, nobodys).await;
                    let theirs = class.ids.masked(&of_theirs);
                    assert_eq!(theirs, made_up.masked(&of_nobodys), "{what}");
                } else {
                    let masked = class.ids.masked(&of_theirs);
                    assert_eq!(masked, of_theirs, "{what} tells an id");
                }
                class.goes_on(path).await;
            }
        }
    }
    class.ends().await;
}
