package tablestore

// Wrapper is a store that passes calls on to another one.
type Wrapper interface {
	Store

	// Unwrap returns that store.
	Unwrap() Store
}

// As returns the store as an optional interface, or the first store inside of its wrappers
// that has it. It is not for [AtomicStore]: a wrapper that passes on single batches alone is
// not one, whatever it wraps.
func As[T any](store Store) (T, bool) {
	for {
		if found, ok := store.(T); ok {
			return found, true
		}
		wrapper, ok := store.(Wrapper)
		if !ok {
			var none T
			return none, false
		}
		store = wrapper.Unwrap()
	}
}
