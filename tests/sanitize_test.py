#!/usr/bin/env python3
"""A part has passed only if each of its tests ran or was skipped on purpose."""
import unittest
import xml.etree.ElementTree as xml

import sanitize


class SanitizeTest(unittest.TestCase):
    def test_a_test_whose_program_is_missing_has_failed(self):
        cases = {
            '<testcase name="a" status="run"/>': (1, 0, 0),
            '<testcase name="a" status="fail"><failure message=""/></testcase>': (0, 0, 1),
            '<testcase name="a" status="notrun"><skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/></testcase>': (0, 1, 0),
            '<testcase name="a" status="notrun"><skipped message="Unable to find executable"/></testcase>': (0, 0, 1),
        }
        for text, expected in cases.items():
            self.assertEqual(sanitize.count(xml.fromstring(f"<testsuite>{text}</testsuite>")), expected, text)


if __name__ == "__main__":
    unittest.main()
