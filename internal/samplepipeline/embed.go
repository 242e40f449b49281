package samplepipeline

import (
	"hash/fnv"
	"math"
	"strings"
)

const (
	// dimensions is the length of every vector. Half of it is enough for long
	// queries, but with short queries hash collisions would then outweigh the one or
	// two words that query and chunk share.
	dimensions = 512
	// chunkWords is the most words of a chunk: about a paragraph, so that a hit
	// locates the passage in its document.
	chunkWords = 80
)

// Chunk is a part of a document with its vector.
type Chunk struct {
	Text   string    `json:"text"`
	Vector []float32 `json:"vector"`
}

// Embedded is a document in chunks.
type Embedded struct {
	Text
	Chunks []Chunk `json:"chunks"`
}

// Embed splits a document into chunks of at most 80 words and computes the vector
// of each, see [Vector]. The title counts in every chunk. The chunks have nearly the
// same length: a short last one would be near to any query that shares a word with it.
func Embed(text Text) Embedded {
	embedded := Embedded{Text: text}
	words := strings.Fields(text.Body)
	chunks := (len(words) + chunkWords - 1) / chunkWords
	for i := range chunks {
		chunk := strings.Join(words[i*len(words)/chunks:(i+1)*len(words)/chunks], " ")
		embedded.Chunks = append(embedded.Chunks, Chunk{Text: chunk, Vector: Vector(text.Title + "\n" + chunk)})
	}
	return embedded
}

// Weights of the features of a text.
const (
	weightTerm = 1
	weightPair = 0.5
	// A word's parts bring its forms and compounds near each other: lamp and
	// lamplight.
	weightPart = 0.25
	partLength = 4
)

// Vector is a feature-hashed embedding of a text: its terms, pairs of
// neighbouring terms and parts of terms are hashed (FNV-1a) into 512 signed
// buckets, and the sum is scaled to length 1. The vector of a text without
// terms is 0. No model and no vocabulary: equal texts have equal vectors, on
// every machine.
func Vector(text string) []float32 {
	var buckets [dimensions]float64
	previous := ""
	for _, term := range terms(text) {
		addFeature(&buckets, term, weightTerm)
		if previous != "" {
			addFeature(&buckets, previous+" "+term, weightPair)
		}
		previous = term
		letters := []rune("^" + term + "$")
		for from := 0; from+partLength <= len(letters); from++ {
			addFeature(&buckets, string(letters[from:from+partLength]), weightPart)
		}
	}
	return normalize(&buckets)
}

// addFeature adds the weight to the feature's bucket. The hash's highest bit is
// the sign, so that features that share a bucket cancel out on average.
func addFeature(buckets *[dimensions]float64, feature string, weight float64) {
	h := fnv.New64a()
	_, _ = h.Write([]byte(feature)) // A hash never fails.
	sum := h.Sum64()
	if sum>>63 == 1 {
		weight = -weight
	}
	buckets[sum%dimensions] += weight
}

// normalize scales to length 1.
func normalize(buckets *[dimensions]float64) []float32 {
	vector := make([]float32, dimensions)
	var sum float64
	for _, x := range buckets {
		sum += float64(x * x) // The conversion prevents a fused multiply-add, which would round differently.
	}
	if sum == 0 {
		return vector
	}
	length := math.Sqrt(sum)
	for i, x := range buckets {
		vector[i] = float32(x / length)
	}
	return vector
}
