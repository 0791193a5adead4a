# Gradients on the GPU: accumulation over cells, detaching, hooks, a function with a backward of its own.

# %%
import torch

x = torch.ones(5, device="cuda")
y = torch.zeros(3, device="cuda")
w = torch.linspace(-1, 1, 15).reshape(5, 3).to("cuda").requires_grad_()
b = torch.zeros(3, device="cuda", requires_grad=True)
seen = []

# %%
loss = torch.nn.functional.binary_cross_entropy_with_logits(x @ w + b, y)
loss.backward()
gradient, loss = w.grad, loss.item()
round(loss, 5), w.grad.shape, b.grad

# %%
(x @ w).sum().backward()
print(gradient is w.grad, w.grad.device, w.grad[0])
with torch.no_grad():
    frozen = (x @ w + b).requires_grad

# %%
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return value * value

    @staticmethod
    def backward(ctx, gradient):
        (value,) = ctx.saved_tensors
        seen.append((gradient.device.type, value.device.type))
        return gradient * 2 * value

leaf = torch.tensor([1.0, 2.0], device="cuda", requires_grad=True)
Double.apply(leaf).sum().backward()
leaf.grad, seen

# %%
handle = b.register_hook(lambda gradient: gradient * 10)
(b * 2).sum().backward()
handle.remove()
b.grad, torch.autograd.grad((w**2).sum(), w)[0].is_cuda, frozen

# %%
w.grad = None
jacobian = torch.func.jacrev(lambda value: value**2)(x)
jacobian.diagonal(), w.grad, leaf.detach().requires_grad
