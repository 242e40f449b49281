package aztablestore

// alphabet holds the legal characters of keys, in ascending order.
const alphabet = "-.0123456789:=ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"

// lowest returns the lowest key that is not below the bound, which may be any
// string. Bound and result have the same keys below them, so a filter needs no
// characters that an address or the service's string order might treat
// differently. ok is false if every key is below the bound.
func lowest(bound string) (key string, ok bool) {
	for i := range len(bound) {
		next, legal := following(bound[i])
		if legal {
			continue
		}
		if next != 0 {
			return bound[:i] + string(next), true
		}
		// Every key that continues the prefix is below the bound.
		return afterPrefix(bound[:i])
	}
	return bound, true
}

// afterPrefix returns the lowest key that is above all keys with that prefix.
func afterPrefix(prefix string) (key string, ok bool) {
	for i := len(prefix) - 1; i >= 0; i-- {
		if next, _ := following(prefix[i] + 1); next != 0 {
			return prefix[:i] + string(next), true
		}
	}
	return "", false
}

// following returns the lowest legal character that is not below c, or 0 if
// there is none, and whether it is c itself.
func following(c byte) (next byte, same bool) {
	for i := range len(alphabet) {
		if alphabet[i] >= c {
			return alphabet[i], alphabet[i] == c
		}
	}
	return 0, false
}
