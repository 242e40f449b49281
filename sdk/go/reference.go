package lucius

import (
	"encoding/json"
	"errors"
)

// Reference refers to data that Lucius does not read: a JSON object with a uri, kept as
// given. Nil is no reference.
type Reference json.RawMessage

// URI returns the reference {"uri": uri}.
func URI(uri string) Reference {
	text, _ := json.Marshal(map[string]string{"uri": uri}) // Strings always encode.
	return text
}

// URI returns the reference's uri, empty if it has none.
func (r Reference) URI() string {
	var value struct {
		URI string `json:"uri"`
	}
	if json.Unmarshal(r, &value) != nil {
		return ""
	}
	return value.URI
}

// Decode decodes the whole object into the value.
func (r Reference) Decode(value any) error {
	if r == nil {
		return errors.New("there is no reference")
	}
	return json.Unmarshal(r, value)
}

// MarshalJSON implements [json.Marshaler].
func (r Reference) MarshalJSON() ([]byte, error) { return json.RawMessage(r).MarshalJSON() }

// UnmarshalJSON implements [json.Unmarshaler]. Null becomes nil.
func (r *Reference) UnmarshalJSON(text []byte) error {
	*r = nil
	if string(text) != "null" {
		*r = append(Reference{}, text...)
	}
	return nil
}

// Result is what a [Handler] may return to set both references of its step. The next
// step reads Output, else Ref.
type Result struct {
	// Output becomes the step's output_ref, Ref its result_ref. Optional.
	Output, Ref Reference
}

// maxReference is the limit of the server for a reported reference, in bytes.
const maxReference = 8 << 10

// resultOf returns the references for what a handler returned. The error is final: the
// handler would return the same again.
func resultOf(value any) (Result, error) {
	result, ok := value.(Result)
	if !ok && value != nil {
		text, err := json.Marshal(value)
		if err != nil {
			return result, Final(codeInvalidResult, "the result cannot be encoded: %w", err)
		}
		if err := result.Ref.UnmarshalJSON(text); err != nil {
			return result, err
		}
	}
	for _, ref := range []Reference{result.Output, result.Ref} {
		switch {
		case len(ref) > maxReference:
			return result, Final(codeLargeResult,
				"the result has %d bytes, and a reference at most %d: store the data, and return its URI", len(ref), maxReference)
		case ref != nil && ref.URI() == "":
			return result, Final(codeInvalidResult,
				"the result is %.100s, and must be an object with a uri, such as lucius.URI returns", ref)
		}
	}
	return result, nil
}
