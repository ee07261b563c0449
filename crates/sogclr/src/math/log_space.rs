//! Sums of exponentials that never leave log space, so that any temperature from 0.005 to 1 is finite.

/// ln Σ exp(xᵢ); −∞ for an empty iterator.
pub fn log_sum_exp(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let max = values.clone().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return max;
    }
    max + values.map(|v| (v - max).exp()).sum::<f64>().ln()
}

/// ln(eᵃ + eᵇ).
pub fn log_add_exp(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    if low == f64::NEG_INFINITY {
        return high;
    }
    high + (low - high).exp().ln_1p()
}

/// ln((1−γ)·eᵃ + γ·eᵇ): the moving average of eq. (9) in log space, 0 < γ ≤ 1.
pub fn log_mix(a: f64, b: f64, gamma: f64) -> f64 {
    log_add_exp((1.0 - gamma).ln() + a, gamma.ln() + b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_plain_formula_where_that_is_finite() {
        let x = [0.3_f64, -1.2, 2.5];
        let plain = x.iter().map(|v| v.exp()).sum::<f64>().ln();
        assert!((log_sum_exp(x.iter().copied()) - plain).abs() < 1e-14);
        assert!((log_mix(0.3, -1.2, 0.7) - (0.3 * 0.3_f64.exp() + 0.7 * (-1.2_f64).exp()).ln()).abs() < 1e-14);
    }

    #[test]
    fn survives_the_extremes() {
        assert_eq!(log_sum_exp(std::iter::empty()), f64::NEG_INFINITY);
        assert!((log_add_exp(1000.0, 1000.0) - (1000.0 + 2_f64.ln())).abs() < 1e-12);
        assert_eq!(log_mix(5.0, 3.0, 1.0), 3.0);
        assert_eq!(log_add_exp(f64::NEG_INFINITY, f64::NEG_INFINITY), f64::NEG_INFINITY);
    }
}
