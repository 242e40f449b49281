package aztablestore

// alphabet holds the characters that a key may consist of, in ascending order.
const alphabet = "-.0123456789:=ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"

// lowest returns the lowest key that is not below the bound, which may be any
// string. The same keys are below either, so that a filter need not hold what
// an address or the store's order of strings might treat in its own way. ok is
// false where every key is below the bound.
func lowest(bound string) (key string, ok bool) {
	for i := range len(bound) {
		next, legal := following(bound[i])
		if legal {
			continue
		}
		if next != 0 {
			return bound[:i] + string(next), true
		}
		// Every key that goes on after the prefix is below the bound.
		return behind(bound[:i])
	}
	return bound, true
}

// behind returns the lowest key that is above all keys with that prefix.
func behind(prefix string) (key string, ok bool) {
	for i := len(prefix) - 1; i >= 0; i-- {
		if next, _ := following(prefix[i] + 1); next != 0 {
			return prefix[:i] + string(next), true
		}
	}
	return "", false
}

// following returns the lowest character of a key that is not below c, 0 where
// there is none, and whether it is c itself.
func following(c byte) (next byte, same bool) {
	for i := range len(alphabet) {
		if alphabet[i] >= c {
			return alphabet[i], alphabet[i] == c
		}
	}
	return 0, false
}
