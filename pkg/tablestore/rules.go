package tablestore

import (
	"fmt"
	"time"
	"unicode/utf8"
)

// The range of times that every driver can store.
var (
	minTime = time.Date(1601, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	maxTime = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli() - 1
)

// fault returns the class of the first rule that the property breaks and the
// reason, or nil if it is valid.
func (p *Property) fault() (class error, reason string) { //nolint:revive,staticcheck // A class, not an outcome.
	switch {
	case len(p.Name) > MaxNameBytes:
		return ErrTooLarge, fmt.Sprintf("has a name of %d bytes, limit %d", len(p.Name), MaxNameBytes)
	case !validName(p.Name):
		return ErrInvalid, "has a name that does not match [A-Za-z_][A-Za-z0-9_]*"
	case p.Name == "PartitionKey" || p.Name == "RowKey" || p.Name == "Timestamp":
		return ErrInvalid, "has a reserved name"
	}
	return p.Value.fault()
}

func (v Value) fault() (class error, reason string) { //nolint:revive,staticcheck // As above.
	switch v.kind {
	case KindString:
		if !utf8.ValidString(v.str) {
			return ErrInvalid, "is not valid UTF-8"
		}
		// A UTF-8 byte is at most one UTF-16 unit, so most strings need no count.
		if len(v.str) > MaxStringUnits {
			if units := utf16Units(v.str); units > MaxStringUnits {
				return ErrTooLarge, fmt.Sprintf("is a string of %d UTF-16 units, limit %d", units, MaxStringUnits)
			}
		}
	case KindBytes:
		if len(v.bin) > MaxPropertyBytes {
			return ErrTooLarge, fmt.Sprintf("holds %d bytes, limit %d", len(v.bin), MaxPropertyBytes)
		}
	case KindTime:
		if v.num < minTime || v.num > maxTime {
			return ErrInvalid, "is a time outside the years 1601 to 9999"
		}
	case KindInt, KindBool:
	default:
		return ErrInvalid, "has no value"
	}
	return nil, ""
}

func validatePartition(table, partition string) error {
	if err := validateTable(table); err != nil {
		return err
	}
	return validateKeyPart("partition key", partition)
}

func validateTable(table string) error {
	if !validTable(table) {
		return fmt.Errorf("%w: table name %q is not 3 to 63 lower-case letters and digits that begin with a letter",
			ErrInvalid, table)
	}
	return nil
}

func validateKeyPart(what, part string) error {
	if part == "" {
		return fmt.Errorf("%w: empty %s", ErrInvalid, what)
	}
	if len(part) > MaxKeyBytes {
		return fmt.Errorf("%w: %s of %d bytes, limit %d", ErrTooLarge, what, len(part), MaxKeyBytes)
	}
	for i := range len(part) {
		if c := part[i]; !plain(c) && c != escapeMark && c != separator {
			return fmt.Errorf("%w: byte %#02x in the %s %q: build it with Escape and Join", ErrInvalid, c, what, part)
		}
	}
	return nil
}

func validTable(name string) bool {
	if len(name) < 3 || len(name) > 63 || name == "tables" || name[0] < 'a' {
		return false
	}
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

func validName(name string) bool {
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}
