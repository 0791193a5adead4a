"""Features deep inside torch that would use the driver, and end the process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset


@pytest.mark.usefixtures("virtual")
def test_a_program_for_several_gpus_trains_as_one_process(tmp_path: Path) -> None:
    distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(nn.Linear(2, 1).cuda(), device_ids=[0])
        model(torch.ones(4, 2, device="cuda")).sum().backward()
        assert model.module.weight.grad.device == torch.device("cuda:0")
        assert model.module.weight.grad.tolist() == [[4.0, 4.0]]
    finally:
        distributed.destroy_process_group()


@pytest.mark.usefixtures("virtual")
def test_a_worker_of_a_loader_that_makes_tensors_on_the_gpu_says_what_a_gpu_says() -> None:
    loader = DataLoader(TensorDataset(torch.ones(2, device="cuda")), num_workers=1)
    with pytest.raises(
        RuntimeError, match=r"(?s)Cannot re-initialize CUDA in forked subprocess.*hint: let the workers"
    ):
        next(iter(loader))


@pytest.mark.usefixtures("virtual")
def test_exporting_a_model_on_the_gpu_says_what_to_do_and_from_the_cpu_works() -> None:
    inputs = (torch.ones(1, 2),)
    with pytest.raises(RuntimeError, match="needs a real GPU"):
        torch.export.export(nn.Linear(2, 1).cuda(), inputs)
    assert torch.export.export(nn.Linear(2, 1), inputs).module()(*inputs).shape == (1, 1)
