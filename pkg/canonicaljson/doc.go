// Package canonicaljson parses JSON strictly and writes it in a canonical form,
// whose SHA-256 tells whether two commands are the same.
//
//	text ──Parse──► tree ──Append──► canonical text ──Hash──► SHA-256, hex
//	                 │
//	                 └──► the envelope, the JSON Schemas of the protocol
//
// [Parse] refuses text that parsers are known to read differently, because it
// could mean one thing to Lucius and another to a platform service: duplicate
// names, invalid UTF-8, lone surrogates, a byte order mark, text after the
// value. It also refuses, as too large, values nested deeper than [MaxDepth],
// and numbers that need more than [MaxDigits] digits, which only an attacker
// sends.
//
// The canonical form:
//
//   - No white space outside of strings; UTF-8 without a byte order mark.
//   - Members are sorted by the UTF-8 bytes of their names (not by UTF-16 code
//     units, as RFC 8785 does), arrays keep their order.
//   - Members whose value is null are left out, at any depth. A null in an array
//     stays, since leaving it out would move its neighbours.
//   - Numbers keep their exact decimal value and never pass through a float, so
//     2^53 and 2^53+1 differ. They are written in plain decimal notation without
//     exponent, superfluous zeros or a negative zero: 1.50, 1.5 and 15e-1 are
//     all 1.5.
//   - In strings only the quotation mark, the backslash and the control
//     characters U+0000 to U+001F are escaped: \b \t \n \f \r, all others as
//     \u00xx with lower-case digits. There is no other normalisation: é and
//     e followed by a combining accent stay two different strings.
//
// The vectors in testdata/canonicaljson are examples of these rules, and can
// test any other implementation.
//
// The package is pure and safe for concurrent use.
//
// Source: Ledger and state model, Canonical JSON for idempotency.
package canonicaljson
