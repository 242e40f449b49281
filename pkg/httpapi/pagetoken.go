package httpapi

import (
	"encoding/base64"
	"strconv"
)

// pageToken encodes a position in a list, which may hold any bytes, as its
// next_page_token; the end of the list is empty.
func pageToken(place string) string { return base64.RawURLEncoding.EncodeToString([]byte(place)) }

// placeOf decodes the position in a page token; both are empty at the start. The
// list itself checks the position.
func placeOf(token string) (string, error) {
	place, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || pageToken(string(place)) != token { // The decoder accepts line breaks and stray bits.
		return "", invalid(notGiven, err)
	}
	return string(place), nil
}

// revToken returns the page token of a list that continues after a rev, empty for 0.
func revToken(rev int64) string {
	if rev == 0 {
		return ""
	}
	return pageToken(strconv.FormatInt(rev, 10))
}

// revOf decodes the rev in a position, 0 if it is empty.
func revOf(place string) (int64, error) {
	if place == "" {
		return 0, nil
	}
	rev, err := strconv.ParseInt(place, 10, 64)
	if err != nil || rev < 1 {
		return 0, invalid(notGiven, err)
	}
	return rev, nil
}

// notGiven is the message for a page token that no page has given.
const notGiven = "page_token is invalid"
