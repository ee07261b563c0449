"""linear.json: multinomial logistic regression at its minimum, cosine-weighted kNN votes, in float64."""

import torch
from torch.nn.functional import cross_entropy, normalize

from golden import hashed, save_json

SAMPLES, FEATURES, CLASSES, QUERIES = 30, 5, 3, 8
LAMBDA, K, TAU = 1e-2, 5, 0.07


def data():
    """x = centre[label] + noise   [30, 5], [8, 5]"""
    centres = hashed("linear.centres", CLASSES, FEATURES)
    labels = torch.arange(SAMPLES) * 7 % CLASSES
    x = centres[labels] + 1.2 * hashed("linear.x", SAMPLES, FEATURES)
    queries = centres[torch.arange(QUERIES) % CLASSES] + 1.2 * hashed("linear.queries", QUERIES, FEATURES)
    return x, labels, queries


def objective(theta, x, labels):
    """mean CE(xWᵀ + b) + ½λ‖W‖²,  theta = (W, b)"""
    w, b = theta[:-CLASSES].reshape(CLASSES, FEATURES), theta[-CLASSES:]
    return cross_entropy(x @ w.T + b, labels) + 0.5 * LAMBDA * w.square().sum()


def fit(x, labels):
    theta = torch.zeros(CLASSES * (FEATURES + 1), dtype=torch.float64, requires_grad=True)
    lbfgs = torch.optim.LBFGS([theta], max_iter=500, line_search_fn="strong_wolfe")

    def closure():
        lbfgs.zero_grad()
        value = objective(theta, x, labels)
        value.backward()
        return value

    lbfgs.step(closure)
    # The line search stops at the rounding of the value; Newton steps go on to that of the gradient.
    # pinv: a shift common to all b leaves the objective unchanged.
    for _ in range(3):
        closure()
        hessian = torch.autograd.functional.hessian(lambda p: objective(p, x, labels), theta.detach())
        theta.data -= torch.linalg.pinv(hessian, rtol=1e-12, hermitian=True) @ theta.grad
    value = closure().item()
    assert theta.grad.abs().max() < 1e-10
    w, b = theta.detach()[:-CLASSES].reshape(CLASSES, FEATURES), theta.detach()[-CLASSES:]
    return w - w.mean(0), b - b.mean(), value


def vote(x, labels, queries):
    """score_c = Σ_{k nearest, label c} exp(s/τ)   [8, 3]"""
    s, nearest = (normalize(queries, dim=1) @ normalize(x, dim=1).T).topk(K, dim=1)
    one_hot = torch.nn.functional.one_hot(labels[nearest], CLASSES).double()
    return nearest, ((s / TAU).exp()[:, :, None] * one_hot).sum(1)


def main():
    x, labels, queries = data()
    w, b, value = fit(x, labels)
    nearest, scores = vote(x, labels, queries)
    save_json(
        "linear.json",
        {
            "features": x.tolist(),
            "labels": labels.tolist(),
            "logistic": {"lambda": LAMBDA, "weight": w.tolist(), "bias": b.tolist(), "minimum": value},
            "knn": {
                "k": K,
                "tau": TAU,
                "queries": queries.tolist(),
                "nearest": nearest.tolist(),
                "scores": scores.tolist(),
                "predicted": scores.argmax(1).tolist(),
            },
        },
    )


if __name__ == "__main__":
    main()
