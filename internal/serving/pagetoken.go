package serving

import (
	"encoding/base64"
	"strconv"

	"github.com/lucius-project/lucius/pkg/problem"
)

// pageToken is the next_page_token for a place in a list, which may hold any bytes;
// the end of the list is empty.
func pageToken(place string) string { return base64.RawURLEncoding.EncodeToString([]byte(place)) }

// placeOf is the place that a page token stands for, empty for none. What a place
// may be is the list's to check.
func placeOf(token string) (string, error) {
	place, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || pageToken(string(place)) != token { // Line breaks and stray bits are let pass.
		return "", notGiven(err)
	}
	return string(place), nil
}

// revToken is the page token of a list that goes on after a rev, empty for 0.
func revToken(rev int64) string {
	if rev == 0 {
		return ""
	}
	return pageToken(strconv.FormatInt(rev, 10))
}

// revOf is the rev that a page token stands for, 0 for none.
func revOf(token string) (int64, error) {
	place, err := placeOf(token)
	if err != nil || place == "" {
		return 0, err
	}
	rev, err := strconv.ParseInt(place, 10, 64)
	if err != nil || rev < 1 {
		return 0, notGiven(err)
	}
	return rev, nil
}

// notGiven is the problem of a page token that no page has given.
func notGiven(err error) error {
	return &problem.Error{Code: problem.InvalidEnvelope, Err: err, Errors: []problem.Violation{{
		Message: "page_token is not one that a page has given",
	}}}
}
