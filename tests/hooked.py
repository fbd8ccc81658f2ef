"""Networks that act in the backward pass."""


def on_hidden(hook, between=lambda x: x):
    """A forward through two layers, ``a`` and ``b``, that hooks the gradient of what is between them."""

    def forward(net, x):
        hidden = between(net.a(x))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: hook(net, gradient))
        return net.b(hidden)

    return forward
