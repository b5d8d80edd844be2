"""A model that FSDP2 (`fully_shard`) divides among processes: where its parameters lie, and when they are whole.

FSDP gathers the parameters of one module before its forward pass. Here they are freed after it, and gathered again when
autograd reads them in the backward pass. FSDP's own hooks run with gradients turned off: it registers nothing for the
backward pass, sees no gradient and reduces none. Weighted sums go to the shards by `SumsByShard` (sums.py). The casts
of its mixed precision are made before it (precision.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from discreet.core.check import refuse, require
from discreet.core.world import World
from discreet.engine.layout import Layout
from discreet.engine.proof.lineage import storage_of, version_of
from discreet.engine.shards.local import is_sharded, local_of
from discreet.engine.shards.precision import Casts

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

_LEAST_TORCH = (2, 13)  # FSDPModule.reset_iter_state
_KEPT = 2  # modules that are whole at once in the backward pass


@final
class Saved:
    """Keeps what autograd saves: parameters as a promise to gather them, and the version of every tensor.

    Autograd itself compares versions only where no hook is. A class of its own, by which the watch knows it.
    """

    def __init__(self, owners: dict[int, FSDPModule]) -> None:
        self._owners = owners

    def __call__(self, tensor: Tensor) -> tuple[Tensor, int, FSDPModule | None]:
        with torch._C.DisableTorchFunction():
            owner = self._owners.get(storage_of(tensor)) if tensor.layout == torch.strided else None
            return tensor, version_of(tensor), owner


@final
class Sharding:
    """The shards of one model.

    Guarantee: between passes, and outside of `whole`, a process holds its own shard of every parameter and no more.
    The parameters of a gathered module are tensors that stay the same from pass to pass; only their memory comes and
    goes.

    wholes   the gathered parameters, by name
    across   the processes among which the parameters are divided
    holders  the processes that hold the same shards as this one (HSDP); for plain FSDP this process alone
    """

    def __init__(self, model: nn.Module, world: World) -> None:
        from torch.distributed.fsdp import FSDPModule

        _check_version()
        self._root: Any = _checked_root(model, FSDPModule)
        self._world = world
        self._modules: list[FSDPModule] = [module for module in model.modules() if isinstance(module, FSDPModule)]
        _check_hooks(self._modules)
        shards: dict[str, Tensor] = dict(model.named_parameters())
        self.across, self.holders = _worlds(shards, world)
        self._is_whole = self._is_watched = self._has_run = False
        self._recent: list[FSDPModule] = []  # gathered in the backward pass, the newest last
        self._quiet = ExitStack()
        self._casts = {module: Casts(module) for module in self._modules}
        self.wholes: dict[str, Tensor] = {}
        self.groups: list[list[str]] = []  # the names of parameters that are gathered together
        self._owners: dict[int, FSDPModule] = {}
        for module in self._modules:
            self._learn(model, module)
        _check_twins(shards, self.wholes)
        self._root.set_reshard_after_forward(False)  # FSDP would free parameters also inside of `whole`
        self._hooks = [hook for module in self._modules for hook in self._attached(module)]

    @staticmethod
    def of(model: nn.Module) -> Sharding | None:
        """The shards of a model; None for a model that every process holds as a whole."""
        return Sharding(model, World.current()) if any(map(is_sharded, model.parameters())) else None

    @contextmanager
    def whole_if(self, is_needed: bool) -> Iterator[None]:
        """All parameters are whole inside the block if any process needs it; all of them have to ask."""
        if self._world.any(is_needed):
            with self.whole():
                yield
        else:
            yield

    def _learn(self, model: nn.Module, module: FSDPModule) -> None:
        """Which parameters are gathered with this module, and what they are then."""
        self._unshard(module)
        whole = {name: tensor for name, tensor in model.named_parameters() if not is_sharded(tensor)}
        # The modules of `fully_shard([a, b])` are gathered together: their parameters are one group.
        new = {name: tensor for name, tensor in whole.items() if name not in self.wholes}
        self.wholes |= new
        self._owners |= {storage_of(tensor): module for tensor in new.values()}
        if new:
            self.groups.append(list(new))
        module.reshard()

    def held(self, layout: Layout, parameters: dict[str, Tensor]) -> Layout:
        """The layout of what this process holds of the parameters of a layout."""
        shapes = tuple(tuple(local_of(parameters[name]).shape) for name in layout.names)
        return Layout(layout.names, shapes)

    # -- passes ----------------------------------------------------------------------------------------

    def any(self, holds: bool) -> bool:
        """Whether it holds in any process of the run; all of them have to ask."""
        return self._world.any(holds)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """All parameters are whole inside the block, in all processes. Passes in it are no matter of the others."""
        for module in self._modules:
            self._unshard(module)
        self._is_whole = True
        try:
            yield
        finally:
            self._is_whole = False
            self.rest()

    @staticmethod
    def is_own(hooks: Sequence[Any]) -> bool:
        """Whether hooks on saved tensors are those of `watched`."""
        pack, unpack = hooks
        return isinstance(pack, Saved) and getattr(unpack, "__func__", None) is Sharding._restored

    @contextmanager
    def watched(self) -> Iterator[None]:
        """The block is a forward pass whose backward pass gathers the parameters again."""
        before, self._is_watched = self._is_watched, True
        try:
            with torch.autograd.graph.saved_tensors_hooks(Saved(self._owners), self._restored):
                yield
        finally:
            self._is_watched = before

    def _restored(self, saved: tuple[Tensor, int, FSDPModule | None]) -> Tensor:
        tensor, version, owner = saved
        with torch._C.DisableTorchFunction():
            require(
                version_of(tensor) == version,
                "tensors that stay as they were until the backward pass",
                "one that autograd needs and that was written to in place",
                "replace the in-place operation",
            )
            if owner is not None:
                self._gather(owner)
        return tensor

    def gather(self, tensors: Sequence[Tensor]) -> None:
        """Fill the memory of the parameters among these tensors."""
        for tensor in tensors:
            owner = self._owners.get(storage_of(tensor)) if tensor.layout == torch.strided else None
            if owner is not None:
                self._gather(owner)

    @torch.no_grad()
    def _gather(self, module: FSDPModule) -> None:
        if module in self._recent:
            self._recent.remove(module)
        else:
            self._unshard(module)
        self._recent.append(module)
        while len(self._recent) > _KEPT:
            self._recent.pop(0).reshard()

    def _unshard(self, module: FSDPModule) -> None:
        self.across.talk("gathering of parameters", module.unshard)

    def rest(self) -> None:
        """Free all gathered parameters; FSDP forgets the passes that were begun."""
        self._quiet.close()
        self._recent = []
        with torch._C.DisableTorchFunction(), torch.no_grad():
            if self._has_run:  # before its first pass FSDP has nothing to reset
                self._root.reset_iter_state()
            for module in self._modules:
                module.reshard()

    # -- hooks -----------------------------------------------------------------------------------------

    def _attached(self, module: Any) -> list[Any]:
        """Hooks right before and right after those of FSDP."""
        return [
            module.register_forward_pre_hook(self._begin, prepend=True, with_kwargs=True),
            module.register_forward_pre_hook(self._turn_back, with_kwargs=True),
            module.register_forward_hook(self._finish, prepend=True),
            module.register_forward_hook(self._free),
        ]

    def _begin(self, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        self._has_run = True
        cast: tuple[Any, Any] = self._casts[module].inputs(args, kwargs)  # as a call of the model, which is watched
        self._turn_quiet()
        self._unshard(module)  # FSDP finds it done, so that a process that is lost gets one message
        return cast

    def _turn_quiet(self) -> None:
        """FSDP's own calls are not the user's; in a pass of the engine's it registers nothing for the backward pass."""
        self._quiet.enter_context(torch._C.DisableTorchFunction())
        if self._is_watched or self._is_whole:
            self._quiet.enter_context(torch.no_grad())

    def _turn_back(self, module: Any, args: Any, kwargs: Any) -> None:
        self._quiet.close()
        self._check_kept(module, (args, kwargs))

    def _finish(self, module: Any, inputs: Any, output: Any) -> Any:
        cast = self._casts[module].output(output)
        self._turn_quiet()
        return cast

    def _free(self, module: Any, inputs: Any, output: Any) -> None:
        self._quiet.close()
        self._check_kept(module, output)
        if not self._is_whole:
            with torch._C.DisableTorchFunction():
                module.reshard()

    def _check_kept(self, module: Any, value: Any) -> None:
        """Refuse tensors that FSDP's hook exchanged, in a watched pass."""
        if self._is_watched:
            self._casts[module].check_kept(value)
        else:
            self._casts[module].forget()

    def close(self) -> None:
        """Give the model back to FSDP, with its usual settings."""
        for hook in self._hooks:
            hook.remove()
        self.rest()
        for module in self._modules:
            module.set_reshard_after_forward(module is not self._root, recurse=False)


# -- what is refused -------------------------------------------------------------------------------------------


def _check_version() -> None:
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    least = ".".join(map(str, _LEAST_TORCH))
    require(version >= _LEAST_TORCH, f"torch >= {least} for sharded models", torch.__version__, "install a newer torch")


def _checked_root(model: nn.Module, kind: type) -> Any:
    remedy = "call torch.distributed.fsdp.fully_shard(model) last, on the model itself"
    require(isinstance(model, kind), "a model that fully_shard has sharded as a whole", type(model).__name__, remedy)
    return model


def _check_hooks(modules: Sequence[Any]) -> None:
    """Refuse hooks between those of FSDP and ours, where no call is watched."""
    for module in modules:
        require(
            len(module._forward_pre_hooks) == len(module._forward_hooks) == 1,
            "no forward hooks of your own on modules that were passed to fully_shard",
            f"some on {type(module).__name__}",
            "register them after Private is built, or on a module inside",
        )


def _worlds(shards: dict[str, Any], world: World) -> tuple[World, World]:
    """The processes that divide the parameters, and those that hold the same shards."""
    plain = [name for name, tensor in shards.items() if not is_sharded(tensor)]
    remedy = "leave ignored_params of fully_shard out"
    require(not plain, "every parameter in a shard", f"{', '.join(plain[:3])} as a whole", remedy)
    first = next(iter(shards.values()))
    mesh, placements = first.device_mesh, first.placements
    for name, tensor in shards.items():
        require(
            tensor.device_mesh == mesh and tensor.placements == placements,
            "one device mesh for all parameters",
            f"another one for {name}",
            "call fully_shard with the same mesh everywhere",
        )
    *replicas, last = placements
    is_rows = last.is_shard(0) and len(replicas) <= 1 and all(one.is_replicate() for one in replicas)
    remedy = "use fully_shard with its default placement, and no tensor parallelism"
    require(is_rows, "parameters that are divided by rows", f"placements {placements}", remedy)
    got = f"a mesh of {mesh.size()} of {world.size} processes"
    require(mesh.size() == world.size, "a mesh of all processes", got, "pass a mesh with all of them")
    across, *holders = (
        World(mesh.get_local_rank(dim), mesh.size(dim), mesh.get_group(dim)) for dim in reversed(range(mesh.ndim))
    )
    return across, holders[0] if holders else World()


def _check_twins(shards: Mapping[str, Tensor], wholes: dict[str, Tensor]) -> None:
    """Parameters are gathered where they are stored, and as they are stored or, by `mp_policy`, in bfloat16."""
    for name, shard in shards.items():
        whole, local = wholes[name], local_of(shard)
        if whole.device != local.device or whole.dtype not in (local.dtype, torch.bfloat16):
            refuse(
                "parameters that are gathered as they are stored, or in bfloat16",
                f"{name} in {local.dtype} on {local.device}, gathered in {whole.dtype} on {whole.device}",
                "use MixedPrecisionPolicy(param_dtype=torch.bfloat16) or none, and leave offload_policy out",
            )
