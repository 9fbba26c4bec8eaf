module words

go 1.22
