# Beautiful Soup: tags that a notebook keeps belong to their document.

# %%
from bs4 import BeautifulSoup

page = "<table>" + "".join(f"<tr><td>{n}</td><td class='name'>name {n}</td></tr>" for n in range(400)) + "</table>"
soup = BeautifulSoup(page, "html.parser")
rows = soup.find_all("tr")
first = rows[0].td
name = first.next_sibling

# %%
first.string = "changed"
name["class"] = ["name", "first"]
print(soup.td, name.parent is rows[0], soup.select_one(".first") is name, rows[1].find_parent("table") is soup.table)

# %%
new = soup.new_tag("p", id="end")
new.append("the end")
soup.append(new)
rows[3].decompose()
print(len(soup("tr")), new.parent is soup, soup.p is new, str(soup)[:60])

# %%
new.string.replace_with("changed, too")
taken = rows[1].extract()
print(len(soup("tr")), taken.parent, soup.p, soup.find(string="changed") is first.string, first.string.parent is first)

# %%
soup.table.insert(0, taken)
print(taken.td.get_text(), taken.parent is soup.table, soup.tr is taken, len(soup("tr")), soup.p["id"], first.find_next("td") is name)
