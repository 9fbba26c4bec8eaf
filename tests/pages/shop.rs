use std::time::Duration;

use sandstorm_client::control::{Control, ControlError};
use sandstorm_client::{Client, Config, Direction, Error, PutOutcome, Reply};

async fn shop(config: Config, items: u64, prices: u64) -> Result<(), Error> {
    let client = Client::connect(config.deadline(Duration::from_secs(5))).await?;

    // Conditions: `Error::Conflict` when they do not hold. `outcome` says which version stands there instead.
    let version = client.put(items, b"plum", b"4").if_absent().ttl(Duration::from_secs(60)).await?;
    client.put(items, b"plum", b"5").if_version(version).await?;
    if let PutOutcome::Conflict { version: Some(found) } =
        client.put(items, b"plum", b"6").if_version(version).outcome().await?
    {
        println!("the plums are of version {found} by now, not {version}");
    }
    let sum = client.increment(items, b"apple", 2).await?;

    // 1,000 keys a round trip; of one moment: at most 1,000.
    let records = client.multi_get(items, &["apple", "pear", "plum"]).await?;
    let at_once = client.snapshot(items, &["apple", "pear"]).await?;

    // A range, of a table that was made with `--ordered`.
    client.put(prices, b"apple", b"30").await?;
    let first = client.range(prices, b"a", b"b", 20, Direction::Forward).await?;

    // Several operations in one message: one round trip, in order, each with its own result; no transaction.
    let replies =
        client.batch().get(items, b"apple").increment(items, b"visits", 1).delete(items, b"plum").send().await?;
    if let [_, Ok(Reply::Sum(visits)), _] = &replies[..] {
        println!("{visits} visits, {sum} apples, {} {} {}", records.len(), at_once.len(), first.len());
    }

    // An extension: arguments and reply are bytes. `query` is for those that only read; others are called by `invoke`.
    match client.query("sum", b"apple\npear").await {
        Ok(reply) => println!("{}", String::from_utf8_lossy(&reply)),
        Err(Error::Failed { code, text }) => println!("it said: {text} ({code})"),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Where the data are, and the ids of both tables.
fn ids(control: &str, token: &str) -> Result<(Config, u64, u64), ControlError> {
    let control = Control::new(control, Some(token));
    let data = control.health()?.data_address.parse().expect("an address");
    let config = Config::new(data, control.tenant("shop")?.id).token(token);
    Ok((config, control.table("shop", "items")?.id, control.table("shop", "prices")?.id))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let token = std::env::var("SANDSTORM_TOKEN")?;
    let (config, items, prices) = tokio::task::spawn_blocking(move || ids("127.0.0.1:7399", &token)).await??;
    Ok(shop(config, items, prices).await?)
}
