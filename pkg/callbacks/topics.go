package callbacks

import "time"

// UnreadTopic is a topic whose replies cannot be read now.
type UnreadTopic struct {
	Topic string
	// Reason is why, in the bus's words, empty if it is not known.
	Reason string
}

// DeadLetters is the result of a count of the replies that could not be handled.
type DeadLetters struct {
	// Count is how many there are, at most 500 of each topic.
	Count int
	// Oldest is when the oldest of them was sent; zero if there is none.
	Oldest time.Time
}
