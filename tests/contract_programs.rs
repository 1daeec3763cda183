//! The programs that users are shown, as they stand.

use std::error::Error;

#[rustfmt::skip]
async fn first_program() -> Result<(), Box<dyn Error>> {
    use dynamo_llm::block_manager::{
        KvBlockManager, KvBlockManagerConfig, KvManagerModelConfig, KvManagerRuntimeConfig
    };
    let config = KvBlockManagerConfig::builder()
        .runtime(KvManagerRuntimeConfig::builder().worker_id(0).build())
        .model(KvManagerModelConfig::builder().num_layers(32).page_size(16).inner_dim(4096).build())
        .build()?;
    let block_manager = KvBlockManager::new(config).await?;

    // It works, on a machine with no GPU too, and says what it decided.
    assert_eq!((block_manager.block_size(), block_manager.worker_id()), (16, 0));
    let device = block_manager.device().ok_or("the device tier is on by default")?;
    let host = block_manager.host().ok_or("the host tier is on by default")?;
    assert!(host.total_blocks() >= device.total_blocks());
    let blocks = device.allocate_blocks(1).await?;
    assert_eq!(blocks[0].block_view()?.len(), 32 * 2 * 16 * 4096 * 2);
    let decided = |field: &str| block_manager.findings().iter().any(|f| f.field == field);
    assert!(decided("device") && decided("device.blocks") && decided("host.blocks"));
    Ok(())
}

#[tokio::test(flavor = "current_thread")]
async fn the_first_program_runs_on_one_thread() -> Result<(), Box<dyn Error>> {
    first_program().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_program_runs_on_several_threads() -> Result<(), Box<dyn Error>> {
    first_program().await
}

#[test]
fn the_first_program_runs_on_an_executor_of_ten_lines() -> Result<(), Box<dyn Error>> {
    use std::{
        pin::pin,
        sync::Arc,
        task::{Context, Poll, Wake, Waker},
        thread::{self, Thread},
    };
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(first_program());
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return result,
            Poll::Pending => thread::park(),
        }
    }
}
