package tablestore

import (
	"unicode/utf8"
)

// The port's limits. They are those of Azure Tables, or stricter, and the same
// for every driver: what one store accepts, all accept.
const (
	// MaxBatchOps is the greatest number of writes in a batch.
	MaxBatchOps = 100

	// MaxBatchBytes is the largest [BatchBytes] of a batch.
	MaxBatchBytes = 4 << 20

	// MaxRowBytes is the largest [RowBytes] of a row.
	MaxRowBytes = 1 << 20

	// MaxProperties is the greatest number of properties of a row.
	MaxProperties = 252

	// MaxPropertyBytes is the greatest length of a value of raw bytes.
	MaxPropertyBytes = 64 << 10

	// MaxStringUnits is the greatest length of a string value in UTF-16 code
	// units.
	MaxStringUnits = 32 << 10

	// MaxKeyBytes is the longest partition key and the longest row key, in bytes.
	MaxKeyBytes = 512

	// MaxNameBytes is the longest property name, in bytes.
	MaxNameBytes = 255
)

// Sizes of the parts of a row and an op, in bytes.
const (
	rowOverhead      = 4 + 2*(MaxKeyBytes+MaxKeyBytes)
	propertyOverhead = 8
	opOverhead       = 1 << 10
	annotation       = 40
	scalar           = 32 // The longest number or time, or the quotes of a string.
	escaped          = 6  // The longest form of one byte in a JSON string.
)

// RowBytes returns the size of a row with these properties as Azure Tables
// counts it: two bytes for each UTF-16 code unit of names and strings, plus a
// fixed cost per property. The keys count with their greatest length, so the
// result does not depend on the row's key. A row fits if it is at most
// [MaxRowBytes].
func RowBytes(properties Properties) int {
	size := rowOverhead
	for i := range properties {
		size += propertyOverhead + 2*len(properties[i].Name) + storedBytes(properties[i].Value)
	}
	return size
}

// BatchBytes returns an upper bound of the batch's size on the wire, where
// strings are JSON and raw bytes are base64. A batch fits if it is at most
// [MaxBatchBytes].
func BatchBytes(batch Batch) int {
	size := 0
	for i := range batch {
		size += OpBytes(batch[i])
	}
	return size
}

// surelyFits reports whether the op is so small that neither its row nor its
// share of a full batch can exceed a limit, whatever characters it holds. Most
// ops are, and counting characters costs more than the other checks.
func (op *Op) surelyFits() bool {
	const share = MaxBatchBytes / MaxBatchOps
	longest := opOverhead + len(op.ETag) + 4*(len(op.Key.Partition)+len(op.Key.Row))
	for i := range op.Properties {
		value := &op.Properties[i].Value
		longest += annotation + 2*len(op.Properties[i].Name) + scalar + escaped*len(value.str) + 2*len(value.bin)
		if longest > share {
			return false
		}
	}
	return true
}

// OpBytes returns what the op adds to [BatchBytes] of its batch.
func OpBytes(op Op) int {
	// A key is in the body and, percent-encoded, in the address.
	size := opOverhead + len(op.ETag) + 4*(len(op.Key.Partition)+len(op.Key.Row))
	for i := range op.Properties {
		size += annotation + 2*len(op.Properties[i].Name) + wireBytes(op.Properties[i].Value)
	}
	return size
}

// storedBytes returns the size of a value as Azure counts it towards the row.
func storedBytes(v Value) int {
	switch v.kind {
	case KindString:
		return 4 + 2*utf16Units(v.str)
	case KindBytes:
		return 4 + len(v.bin)
	case KindBool:
		return 1
	default:
		return 8
	}
}

// wireBytes returns the longest form of a value in a request's body.
func wireBytes(v Value) int {
	switch v.kind {
	case KindString:
		return 2 + jsonBytes(v.str)
	case KindBytes:
		return 2 + (len(v.bin)+2)/3*4
	default:
		return scalar
	}
}

// utf16Units returns the number of UTF-16 code units of s, which is valid UTF-8.
func utf16Units(s string) int {
	units := 0
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 0xF0: // the first of four bytes: two units
			units += 2
		case c&0xC0 != 0x80: // the first byte of any other character
			units++
		}
	}
	return units
}

// jsonBytes returns the length of s inside a JSON string, where markup
// characters and line separators are escaped as well.
func jsonBytes(s string) int {
	size := 0
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			size += 2
		case r < 0x20 || r == '<' || r == '>' || r == '&' || r == '\u2028' || r == '\u2029':
			size += 6
		default:
			size += utf8.RuneLen(r)
		}
	}
	return size
}
