package tablestore

import "fmt"

// String returns the verb's name.
func (v Verb) String() string {
	switch v {
	case Insert:
		return "insert"
	case Replace:
		return "replace"
	case Delete:
		return "delete"
	case Put:
		return "put"
	case Discard:
		return "discard"
	}
	return fmt.Sprintf("verb(%d)", uint8(v))
}

// writes reports whether a row is there after the verb.
func (v Verb) writes() bool { return v == Insert || v == Replace || v == Put }

// conditional reports whether the verb carries an ETag.
func (v Verb) conditional() bool { return v == Replace || v == Delete }
