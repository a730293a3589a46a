"""`attend`: Silva's PCE models. Start and end each merge the layers of a token in their own way."""

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from bertvision.backbone.states import States
from bertvision.heads.head import Count, Head, Impossible, in_slices, register

HEADS = 8


class LayerEncoder(nn.Module):
    """A transformer block with one query q for all tokens, attending over the layers of each: q, h_0 ... h_L-1 -> T'.

    x = norm(q + O attention(q; h)), T' = norm(x + V GELU(U x)), U: H -> 4H. A token's keys are not biased: the
    softmax over layers would cancel it. (B, L, S, H) -> (B, S, H). Parameters: 12 * H * H + 12 * H.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.out_norm = nn.LayerNorm(width)

    def forward(self, query: Tensor, layers: Tensor) -> Tensor:
        # Because the query is the same for all tokens, (K h) . q = h . (K' q): keys are never made. And because the
        # value map is linear, layers are mixed before it, which spares L - 1 of L products.
        query_by_head = self.query(query).view(self.heads, -1)  # (n, H / n)
        by_head = self.key.weight.unflatten(0, (self.heads, -1))  # (n, H / n, H)
        keys = torch.einsum("nd,ndh->nh", query_by_head, by_head) / math.sqrt(query_by_head.shape[1])  # (n, H)

        def encode(part: Tensor) -> Tensor:
            attention = linear(part, keys).softmax(dim=1)  # (b, L, S, n)
            mixed = torch.einsum("blsn,blsh->bsnh", attention, part)  # (b, S, n, H)
            values = torch.einsum("bsnh,ndh->bsnd", mixed, self.value.weight.unflatten(0, (self.heads, -1)))
            x = self.norm(query + self.out(values.flatten(2) + self.value.bias))  # (b, S, H)
            return self.out_norm(x + self.feed_forward(x))

        _, depth, tokens, width = layers.shape
        return in_slices(encode, tokens * width * (self.heads + depth), layers)


@register("attend")
class Attend(Head):
    """logit_o = q_o . T'_o, T'_o = sum_l a_ol h_l: each output (start, end) merges the layers by weights of its own.

    Of the N layers that it reads: the outputs of the blocks, and with embedding = true that of the embedding, too.
    q_o, the read-out vector, is also the query. form: "weighted", a_ol = gamma_o w_ol, learned, the same for all
    tokens, 1/N at the start, not softmaxed; "dot", a_ol = softmax_l(q_o . h_l) per token, nothing of its own;
    "bilinear", a_ol = softmax_l(q_o' M_o h_l), M_o the identity at the start; "encoder", T'_o from a transformer block
    whose attention (`heads` heads) runs over the layers of the token with the query q_o. For labels and score: on
    [CLS], one merge per output, and a bias each; for spans a bias would shift all tokens alike, so there is none.
    Parameters: outputs * (H + P [+ 1]), P = N + 1 (weighted), 0 (dot), H * H (bilinear), 12 * H * H + 12 * H (encoder).
    """

    def __init__(
        self,
        layers: int,
        width: int,
        outputs: int,
        *,
        form: Literal["weighted", "dot", "bilinear", "encoder"] = "dot",
        heads: Count = HEADS,
        embedding: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if layers == 1 and not embedding:
            raise Impossible("embedding", "there is no other layer; give true")
        self.layers, self.reads = layers, "all" if embedding else tuple(range(1, layers))
        if form != "encoder" and heads != HEADS:
            raise Impossible("heads", f"only for form 'encoder', not {form!r}")
        if form == "encoder" and width % heads:
            raise Impossible("heads", f"{heads} does not divide the width {width}")
        self.form = form
        bound = 1 / math.sqrt(width)
        self.queries = nn.Parameter(torch.empty(outputs, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None
        if form == "weighted":
            read = layers if embedding else layers - 1
            self.weights = nn.Parameter(torch.full((outputs, read), 1 / read))
            self.gamma = nn.Parameter(torch.ones(outputs))
        elif form == "bilinear":
            self.maps = nn.Parameter(torch.eye(width).repeat(outputs, 1, 1))  # (outputs, H, H)
        elif form == "encoder":
            self.encoders = nn.ModuleList(LayerEncoder(width, heads) for _ in range(outputs))

    @classmethod
    def as_in_0_1(cls, spec: Mapping[str, Any]) -> dict[str, Any]:
        return {"embedding": True, **spec}

    def forward(self, states: States) -> Tensor:
        layers = states.layers
        if self.form == "encoder":
            merged = (encoder(query, layers) for query, encoder in zip(self.queries, self.encoders))  # (B, S, H) each
            columns = [tokens @ query for tokens, query in zip(merged, self.queries)]  # (B, S) each
            logits = torch.stack(columns, dim=-1)  # (B, S, outputs)
        else:
            matched = linear(layers, self.queries)  # (B, L, S, outputs)
            # q . sum_l a_l h_l = sum_l a_l (q . h_l): the merged vectors need not be made.
            logits = (self.attention(layers, matched) * matched).sum(dim=1)  # (B, S, outputs)
        return logits if self.bias is None else logits + self.bias

    def attention(self, layers: Tensor, matched: Tensor) -> Tensor:
        """The weights a of each layer: (B, L, S, outputs), or (L, 1, outputs) where all tokens share them."""
        if self.form == "weighted":
            return (self.gamma.unsqueeze(1) * self.weights).T.unsqueeze(1)
        if self.form == "bilinear":
            keys = torch.einsum("oh,ohk->ok", self.queries, self.maps)  # q' M, (outputs, H)
            matched = linear(layers, keys)
        return matched.softmax(dim=1)

    def layer_weights(self) -> Tensor | None:
        """The size of the learned weights as shares, mean over outputs; None where they depend on the token."""
        if self.form != "weighted":
            return None
        size = self.weights.detach().abs()  # (outputs, N)
        shares = (size / size.sum(dim=1, keepdim=True)).mean(dim=0)
        return pad(shares, (self.layers - len(shares), 0))  # (L,)
