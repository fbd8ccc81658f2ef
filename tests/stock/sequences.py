"""Networks that people write for sequences: recurrent ones with packed sequences, an encoder, a 1-d CNN."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence

from stock.kinds import Stock, classes, of_classes

LENGTH, WORDS = 9, 20


def texts(examples, generator):
    """Tokens of texts of different lengths, padded with 0."""
    lengths = torch.randint(2, LENGTH + 1, (examples,), generator=generator)
    tokens = torch.randint(1, WORDS, (examples, LENGTH), generator=generator)
    tokens = tokens.where(torch.arange(LENGTH) < lengths[:, None], 0)
    return {"tokens": tokens, "lengths": lengths}, tokens[:, 0] % 3


def series(examples, generator):
    targets = torch.randint(3, (examples,), generator=generator)
    return torch.randn(examples, 4, 16, generator=generator) + targets.view(-1, 1, 1), targets


class LSTMClassifier(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8, padding_idx=0)
        self.rnn = nn.LSTM(8, 12, num_layers=2, dropout=dropout, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, tokens, lengths):
        x = pack_padded_sequence(self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False)
        _, (h, _) = self.rnn(x)
        return self.head(h[-1])


class GRUClassifier(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.embedding, self.dropout = nn.Embedding(WORDS, 8), nn.Dropout(dropout)
        self.rnn = nn.GRU(8, 6, bidirectional=True, batch_first=True)
        self.head = nn.Linear(12, 3)

    def forward(self, tokens, lengths):
        x = self.dropout(self.embedding(tokens))
        _, h = self.rnn(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
        return self.head(torch.cat([h[-2], h[-1]], 1))


class EncoderClassifier(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.position = nn.Parameter(0.1 * torch.randn(LENGTH, 8))
        layer = nn.TransformerEncoderLayer(
            8, 2, 16, dropout, activation=nn.ReLU(inplace=True), batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens, lengths):
        padding = torch.arange(LENGTH, device=tokens.device) >= lengths[:, None]
        x = self.encoder(self.embedding(tokens) + self.position, src_key_padding_mask=padding)
        return self.head(x[:, 0])


class SignalCNN(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.p = dropout
        self.conv1, self.conv2 = nn.Conv1d(4, 8, 5, padding=2), nn.Conv1d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = F.max_pool1d(F.relu(self.conv1(x), inplace=True), 2)
        x = F.dropout(F.relu(self.conv2(x)), self.p, self.training)
        return self.head(x.mean(-1))


RECURRENT = "recurrent layer 'rnn' cannot be grouped; use execution: loop"
PACKED = "noise of shape .* which all examples share.*use execution: loop"  # between its layers
SEQUENCES = {
    "LSTM, packed": Stock(LSTMClassifier, texts, classes, of_classes, grouped=RECURRENT, fused=PACKED),
    "bidirectional GRU, packed": Stock(GRUClassifier, texts, classes, of_classes, grouped=RECURRENT),
    "TransformerEncoder": Stock(EncoderClassifier, texts, classes, of_classes),
    "1-d CNN, functional dropout": Stock(SignalCNN, series, classes, of_classes),
}
